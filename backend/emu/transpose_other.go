//go:build noasm || (!amd64 && !arm64)

package emu

func transposeBytes(dst []uint8, ld int, src []uint8, step, rows, cols int) {
	transposeCodesGo(dst, ld, src, step, rows, cols)
}

func transposeWords(dst []uint16, ld int, src []uint16, step, rows, cols int) {
	transposeCodesGo(dst, ld, src, step, rows, cols)
}
