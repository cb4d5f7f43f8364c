//go:build (amd64 || arm64) && !noasm

package fp8

func pack4Vectors(dst, src []uint8) int {
	n := vectorLen(len(src)) &^ 31
	if n > 0 {
		pack4Kernel(&dst[0], &src[0], n)
	}
	return n
}

func unpack4Vectors(dst, src []uint8) int {
	n := vectorLen(len(dst)) &^ 31
	if n > 0 {
		unpack4Kernel(&dst[0], &src[0], n)
	}
	return n
}

//go:noescape
func pack4Kernel(dst, src *uint8, n int)

//go:noescape
func unpack4Kernel(dst, src *uint8, n int)
