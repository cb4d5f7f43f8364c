//go:build !noasm

package gemm

// neonDots multiplies words of four integers with SDOT, of Armv8.2's dot products.
var neonDots = IntegerKernel{
	Name: "neon dot products", size: 4,
	Multiply: func(k, rows int, a []float32, step, stepK int, b, c []float32, load bool) {
		multiplyIntegers6x16NEON(k, rows, &a[0], step, stepK, &b[0], &c[0], load)
	},
	along: copyCodes,
	down:  func(dst []float32, codes []uint8, ld int) { interleave4x16(&dst[0], &codes[0], ld) },
}

// multiplyIntegers6x16NEON stores rows rows, at least one.
//
//go:noescape
func multiplyIntegers6x16NEON(k, rows int, a *float32, step, stepK int, b, c *float32, load bool)

//go:noescape
func interleave4x16(dst *float32, codes *uint8, ld int)
