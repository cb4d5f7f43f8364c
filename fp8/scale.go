package fp8

import "math"

// ScaleFor returns the factor that takes amax to limit, the largest value a
// format (or its margin) allows: limit/amax, or with pow2 the next power of
// two below, which makes scaling and unscaling exact. amax·scale, rounded to
// float32, does not exceed limit.
//
// The scale stays within 2^-126 and 2^126, so that 1/scale is a normal number
// too, and exact for a power of two. Only a limit below 4 can run into the
// lower bound, with an amax near the end of float32, and then exceeds limit.
//
// If amax is 0, NaN or infinite there is nothing to learn from it: ok is
// false, and the caller keeps the scale it has. Without one it takes the 1
// that scale then is.
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

// MXScale returns the E8M0 code of the scale of an MX block whose largest
// magnitude is amax and whose elements have the FP8 format d: the smallest
// power of two by which the block can be divided without exceeding d.Max(),
// that is amax/max rounded up (what cuBLAS and Transformer Engine do and
// torchao calls RCEIL). The OCP specification's own rule, section 6.3, rounds
// the exponent of amax down, and clips the largest elements by up to an eighth.
//
// Elements are cast from x·2^(127-code). A zero block has code 0, as have
// blocks too small for the format; infinity has 0xfe, as the saturating
// hardware conversion gives; NaN has 0xff, which is NaN.
func MXScale(amax float32, d DType) uint8 {
	switch {
	case amax != amax:
		return 0xff
	case amax > math.MaxFloat32:
		return 0xfe
	case amax <= 0:
		return 0
	}
	// The exponents' difference, one more if amax has the larger significand. A
	// subnormal amax is below every format's smallest scale.
	const significand = 1<<23 - 1
	a, limit := math.Float32bits(amax), math.Float32bits(d.Max())
	code := int(a>>23) - int(limit>>23) + 127
	if a&significand > limit&significand {
		code++
	}
	return uint8(max(code, 0))
}
