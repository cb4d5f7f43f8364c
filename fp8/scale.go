package fp8

import "math"

// ScaleRule says how the scale of elements follows from their amax. A code is
// round(x·scale), and scale_inv, the stored factor that dequantizes, is 1/scale.
type ScaleRule uint8

const (
	// Exact: scale is limit/amax in FP32, see ScaleFor.
	Exact ScaleRule = iota
	// Pow2Down: limit/amax, rounded down to a power of two.
	Pow2Down
	// RoundUp: scale_inv is amax/max, rounded up to a power of two in E8M0, see MXScale.
	RoundUp
	// RoundDown: scale_inv is the power of two below amax over that below max, as OCP
	// Microscaling 1.0, section 6.3, says: the largest elements can saturate.
	RoundDown
	// Quotient: scale_inv is amax/max, rounded to nearest in the format of the scale.
	Quotient
)

// ScaleFor returns the scale that maps amax to limit, the format's maximum (less
// a margin): limit/amax. With pow2 it rounds that down to a power of two, so
// that scaling and unscaling are exact. amax·scale, rounded to float32, does not
// exceed limit.
//
// The scale stays within [2^-126, 2^126], so that 1/scale is a normal float32,
// exact if scale is a power of two. Only a limit below 4, with an amax near the
// maximum of float32, reaches the lower bound; amax·scale then exceeds limit.
//
// If amax is 0, NaN or infinite, ScaleFor returns 1 and false: keep the current
// scale, or use 1 if there is none.
func ScaleFor(amax, limit float32, pow2 bool) (scale float32, ok bool) {
	if !(amax > 0 && amax <= math.MaxFloat32) {
		return 1, false
	}
	scale = limit / amax
	if scale*amax > limit { // the quotient was rounded up
		scale = math.Nextafter32(scale, 0)
	}
	if pow2 {
		scale = math.Float32frombits(math.Float32bits(scale) & infBits)
	}
	return min(max(scale, 0x1p-126), 0x1p126), true
}

// MXScale returns the E8M0 code of the scale of an MX block with elements of the
// FP8 format d and the largest magnitude amax. The scale is the smallest power of
// two by which the block can be divided without exceeding d.Max(): amax/d.Max()
// rounded up, as in cuBLAS and Transformer Engine (RCEIL in torchao). The rule of
// the OCP specification, section 6.3, rounds the exponent of amax down and
// saturates the largest elements, by up to an eighth.
//
// The caller casts x·2^(127-code). An amax of 0, or too small for E8M0, gives
// code 0. Infinity gives 0xfe, like the saturating hardware conversion; NaN gives
// 0xff, which is NaN.
func MXScale(amax float32, d DType) uint8 {
	switch {
	case amax != amax:
		return 0xff
	case amax > math.MaxFloat32:
		return 0xfe
	case amax <= 0:
		return 0
	}
	// The code is the difference of the exponents, plus one if amax has the larger
	// significand. A subnormal amax is below every format's smallest scale.
	const significand = 1<<23 - 1
	a, limit := math.Float32bits(amax), math.Float32bits(d.Max())
	code := int(a>>23) - int(limit>>23) + 127
	if a&significand > limit&significand {
		code++
	}
	return uint8(max(code, 0))
}
