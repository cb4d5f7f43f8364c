//go:build !noasm

package fp8

func pack4Vectors(dst, src []uint8) int {
	n := len(src) &^ 31
	if n == 0 {
		return 0
	}
	pack4NEON(&dst[0], &src[0], n)
	return n
}

func unpack4Vectors(dst, src []uint8) int {
	n := len(dst) &^ 31
	if n == 0 {
		return 0
	}
	unpack4NEON(&dst[0], &src[0], n)
	return n
}

//go:noescape
func pack4NEON(dst, src *uint8, n int)

//go:noescape
func unpack4NEON(dst, src *uint8, n int)
