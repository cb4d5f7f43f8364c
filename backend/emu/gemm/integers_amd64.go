//go:build !noasm

package gemm

// avx2Integers multiplies words of two integers with VPMADDWD.
var avx2Integers = IntegerKernel{
	Name: "avx2 integers", size: 2,
	Multiply: func(k, rows int, a []float32, step, stepK int, b, c []float32, load bool) {
		multiplyIntegers6x16AVX2(k, rows, &a[0], step, stepK, &b[0], &c[0], load)
	},
	along: func(dst []float32, codes []uint8) { integersAlongAVX2(&dst[0], &codes[0], len(codes)) },
	down:  func(dst []float32, codes []uint8, ld int) { integersDownAVX2(&dst[0], &codes[0], ld) },
}

// avxVNNI multiplies words of four integers with the VPDPBUSD of AVX-VNNI.
var avxVNNI = IntegerKernel{
	Name: "avxvnni", size: 4,
	Multiply: func(k, rows int, a []float32, step, stepK int, b, c []float32, load bool) {
		multiply6x16VNNI(k, rows, &a[0], step, stepK, &b[0], &c[0], load)
	},
	along:  copyCodes,
	down:   func(dst []float32, codes []uint8, ld int) { interleave4x16(&dst[0], &codes[0], ld) },
	offset: offsetWords,
}

// avx512VNNI multiplies words of four integers with the VPDPBUSD of AVX-512.
var avx512VNNI = IntegerKernel{
	Name: "avx512vnni", size: 4,
	Multiply: func(k, rows int, a []float32, step, stepK int, b, c []float32, load bool) {
		switch {
		case rows <= 4:
			multiply4x32VNNI(k, &a[0], step, stepK, &b[0], &c[0], load)
		case rows <= 8:
			multiply8x32VNNI(k, &a[0], step, stepK, &b[0], &c[0], load)
		default:
			multiply14x32VNNI(k, &a[0], step, stepK, &b[0], &c[0], load)
		}
	},
	along: copyCodes,
	down: func(dst []float32, codes []uint8, ld int) {
		interleave4x16(&dst[0], &codes[0], ld)
		interleave4x16(&dst[16], &codes[16], ld)
	},
	offset: offsetWords,
}

// offsetWords adds 128 to the bytes of words, modulo 256.
func offsetWords(words []float32) {
	whole := len(words) &^ 7
	if whole > 0 {
		offsetWordsAVX2(&words[0], whole)
	}
	for i, w := range view[int32](words)[whole:] {
		view[int32](words)[whole+i] = w ^ -0x7f7f7f80 // 0x80808080
	}
}

//go:noescape
func multiplyIntegers6x16AVX2(k, rows int, a *float32, step, stepK int, b, c *float32, load bool)

//go:noescape
func integersAlongAVX2(dst *float32, codes *uint8, n int)

//go:noescape
func integersDownAVX2(dst *float32, codes *uint8, ld int)

//go:noescape
func multiply6x16VNNI(k, rows int, a *float32, step, stepK int, b, c *float32, load bool)

//go:noescape
func multiply14x32VNNI(k int, a *float32, step, stepK int, b, c *float32, load bool)

//go:noescape
func multiply8x32VNNI(k int, a *float32, step, stepK int, b, c *float32, load bool)

//go:noescape
func multiply4x32VNNI(k int, a *float32, step, stepK int, b, c *float32, load bool)

//go:noescape
func interleave4x16(dst *float32, codes *uint8, ld int)

// n is a multiple of 8.
//
//go:noescape
func offsetWordsAVX2(words *float32, n int)
