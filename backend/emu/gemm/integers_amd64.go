//go:build !noasm

package gemm

// avx2Integers multiplies words of two integers of 16 bits with VPMADDWD.
var avx2Integers = IntegerKernel{
	Name: "avx2 integers", size: 2,
	Multiply: func(k, rows int, a []float32, step, stepK int, b, c []float32, load bool) {
		multiplyIntegers6x16AVX2(k, rows, &a[0], step, stepK, &b[0], &c[0], load)
	},
	along: func(dst []float32, codes []uint8) { integersAlongAVX2(&dst[0], &codes[0], len(codes)) },
	down:  func(dst []float32, codes []uint8, ld int) { integersDownAVX2(&dst[0], &codes[0], ld) },
}

//go:noescape
func multiplyIntegers6x16AVX2(k, rows int, a *float32, step, stepK int, b, c *float32, load bool)

//go:noescape
func integersAlongAVX2(dst *float32, codes *uint8, n int)

//go:noescape
func integersDownAVX2(dst *float32, codes *uint8, ld int)
