//go:build !noasm

package fp8

import "math"

// The …Vectors functions cast the leading elements that fill whole vectors and
// return their number. Their slices have the same length.

// vectorLen returns how many of n elements the assembly casts.
func vectorLen(n int) int { return n &^ 15 }

// castLanes holds the constants of rounding to nearest in one format. The
// assembly repeats each in all lanes of a vector.
type castLanes struct {
	limit, smallest, nan uint32 // from castConstants
	right                uint32 // minus the number of dropped bits: USHL shifts left
	magic                uint32 // castNearest adds it to the exponent
}

// vectorConstants holds the constants of the casts to one format.
type vectorConstants struct{ nearest castLanes }

func newVectorConstants(f *format) *vectorConstants {
	smallest, drop, limit, signShift := f.castConstants()
	return &vectorConstants{castLanes{
		limit: limit, smallest: smallest, nan: f.nan, right: -drop,
		// The low bits of the sum are the code plus smallest>>drop. That is
		// even, so subtracting it here keeps ties to even.
		magic: drop<<23 + -(smallest>>(drop&31))&(1<<(32-signShift)-1),
	}}
}

// stochasticLanes holds the state of Random for the elements from index on,
// which is even, and the constants of stochastic rounding to one format.
type stochasticLanes struct {
	first, key                    uint32 // from weylValue
	floor, ceiling, places, units uint32 // floor is liftedFloor; the others from stochasticConstants
	lift                          float32
}

func newStochasticLanes(f *format, key, index uint64) (r stochasticLanes) {
	r.first, r.key = weylValue(key, index/2)
	r.floor = math.Float32bits(liftedFloor)
	r.lift, r.ceiling, r.places, r.units = f.stochasticConstants()
	return r
}

func amaxVectors(x []float32) (int, float32) {
	n := vectorLen(len(x))
	if n == 0 {
		return 0, 0
	}
	return n, amaxNEON(&x[0], n)
}

func quantize8Vectors(dst []uint8, src []float32, f *format, scale float32, _ bool) (int, float32) {
	n := vectorLen(len(src))
	if n == 0 || f.vectors == nil {
		return 0, 0
	}
	return f.ownNaN(n, quantize8NEON(&dst[0], &src[0], n, &f.vectors.nearest, scale), scale)
}

// ownNaN returns n and amax, or zeros if there may be a code of NaN, which fromBytes would
// change: plain Go then casts all elements.
func (f *format) ownNaN(n int, amax, scale float32) (int, float32) {
	if !f.bytes && (amax != amax || !finitePositive(scale)) {
		return 0, 0
	}
	return n, amax
}

// requantize8Vectors and requantize8StochasticVectors cast nothing: their callers
// fall back to Dequantize16 and Quantize8, which use vectors.
func requantize8Vectors([]uint8, []uint16, DType, *format, float32, float32, bool) (int, float32) {
	return 0, 0
}

func requantize8StochasticVectors([]uint8, []uint16, DType, *format, float32, float32, uint64, uint64, bool) (int, float32) {
	return 0, 0
}

func quantize8StochasticVectors(dst []uint8, src []float32, f *format, scale float32, key, index uint64, _ bool) (int, float32) {
	n := vectorLen(weylRun(index, len(src)))
	if f.vectors == nil {
		return 0, 0
	}
	r := newStochasticLanes(f, key, index)
	if scale *= r.lift; n == 0 || !finitePositive(scale) {
		return 0, 0
	}
	return f.ownNaN(n, quantize8StochasticNEON(&dst[0], &src[0], n, &r, scale), scale)
}

func quantize16Vectors(dst []uint16, src []float32, scale float32) (int, float32) {
	n := vectorLen(len(src))
	if n == 0 {
		return 0, 0
	}
	return n, quantize16NEON(&dst[0], &src[0], n, &rows[F16].vectors.nearest, scale)
}

func quantize16StochasticVectors(dst []uint16, src []float32, scale float32, key, index uint64) (int, float32) {
	n := vectorLen(weylRun(index, len(src)))
	r := newStochasticLanes(rows[F16], key, index)
	if scale *= r.lift; n == 0 || !finitePositive(scale) {
		return 0, 0
	}
	return n, quantize16StochasticNEON(&dst[0], &src[0], n, &r, scale)
}

func encodeBF16Vectors(dst []uint16, step int, src []float32, ld, count, n int) int {
	if n = vectorLen(n); n > 0 {
		for i := range count {
			encodeBF16NEON(&dst[i*step], &src[i*ld], n)
		}
	}
	return n
}

func encodeBF16StochasticVectors(dst []uint16, src []float32, key, index uint64) int {
	n := vectorLen(weylRun(index, len(src)))
	if n > 0 {
		r := newStochasticLanes(rows[BF16], key, index)
		encodeBF16StochasticNEON(&dst[0], &src[0], n, &r)
	}
	return n
}

func decodeBF16Vectors(dst []float32, src []uint16) int {
	n := vectorLen(len(src))
	if n > 0 {
		decodeBF16NEON(&dst[0], &src[0], n)
	}
	return n
}

func dequantize8Vectors(dst []float32, src []uint8, f *format, scaleInv float32) int {
	n := vectorLen(len(src))
	switch {
	case n == 0 || f.decode == nil:
		return 0
	case f.decode == upperByte:
		dequantizeE5M2NEON(&dst[0], &src[0], n, scaleInv)
	default:
		dequantizeNEON(&dst[0], &src[0], n, scaleInv, f.decode)
	}
	return n
}

func dequantize16Vectors(dst []float32, src []uint16, scaleInv float32) int {
	n := vectorLen(len(src))
	if n > 0 {
		dequantize16NEON(&dst[0], &src[0], n, scaleInv)
	}
	return n
}

// In the functions below, n is positive and a multiple of 16.

//go:noescape
func amaxNEON(x *float32, n int) (amax float32)

//go:noescape
func quantize8NEON(dst *uint8, src *float32, n int, c *castLanes, scale float32) (amax float32)

//go:noescape
func quantize8StochasticNEON(dst *uint8, src *float32, n int, c *stochasticLanes, scale float32) (amax float32)

//go:noescape
func quantize16NEON(dst *uint16, src *float32, n int, c *castLanes, scale float32) (amax float32)

//go:noescape
func quantize16StochasticNEON(dst *uint16, src *float32, n int, c *stochasticLanes, scale float32) (amax float32)

//go:noescape
func encodeBF16NEON(dst *uint16, src *float32, n int)

//go:noescape
func encodeBF16StochasticNEON(dst *uint16, src *float32, n int, c *stochasticLanes)

//go:noescape
func decodeBF16NEON(dst *float32, src *uint16, n int)

//go:noescape
func dequantizeNEON(dst *float32, src *uint8, n int, scaleInv float32, c *decodeWords)

//go:noescape
func dequantizeE5M2NEON(dst *float32, src *uint8, n int, scaleInv float32)

//go:noescape
func dequantize16NEON(dst *float32, src *uint16, n int, scaleInv float32)
