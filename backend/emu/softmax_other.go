//go:build noasm || (!amd64 && !arm64)

package emu

func maxRows(s sheet, rows int, visible []int, top []float32) { maxRowsGo(s, rows, visible, top) }

func weighRows(s sheet, rows, width int, visible []int, scale float32, largest, total []float32) {
	weighRowsGo(s, rows, width, visible, scale, largest, total)
}

func gradientRows(p, ds sheet, rows, width int, visible []int, scale2, scale float32, lse2, delta []float32) {
	gradientRowsGo(p, ds, rows, width, visible, scale2, scale, lse2, delta)
}
