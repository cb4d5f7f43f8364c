package fp8

import "math"

// EncodeF16 rounds src to nearest F16, ties to even, and writes the codes to dst.
// Magnitudes of 65520 and more become infinity, as in IEEE 754: values without a scale
// must show their overflow. Quantize16 saturates instead. EncodeF16 returns the amax of
// src.
//
// EncodeF16 panics if dst is shorter than src.
func EncodeF16(dst []uint16, src []float32) (amax float32) {
	if amax = Quantize16(dst, src, 1); amax <= F16.Max() {
		return amax
	}
	for i, x := range src {
		if !(math.Abs(float64(x)) <= float64(F16.Max())) {
			dst[i] = uint16(F16.Nearest(x, NonSaturating))
		}
	}
	return amax
}

// EncodeF16Stochastic is EncodeF16 with stochastic rounding. It rounds element i with
// Random(key, index+i), where index is the position of src[0] in its whole tensor.
// Between 65504 and 65536 it overflows with the probability of rounding up.
func EncodeF16Stochastic(dst []uint16, src []float32, key, index uint64) (amax float32) {
	if amax = Quantize16Stochastic(dst, src, 1, key, index); amax <= F16.Max() {
		return amax
	}
	for i, x := range src {
		if !(math.Abs(float64(x)) <= float64(F16.Max())) {
			dst[i] = uint16(F16.Stochastic(x, Random(key, index+uint64(i)), NonSaturating))
		}
	}
	return amax
}
