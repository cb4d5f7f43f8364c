//go:build (amd64 || arm64) && !noasm

package fp8

import "math"

// For stochastic rounding, the vector kernels keep the code in the top bits of a
// 32-bit lane and its discarded fraction below. They first multiply by lift, the
// power of two that maps the smallest normal value to liftedFloor. The low exponent
// bits of the product, as many as the format has, are then the exponent of the code.
const liftedFloor = 4

// stochasticConstants returns lift; the bits of the largest value times lift (ceiling); the left
// shift that moves a code to the top of the lane (places); and the bits of the factor
// that does so for values below liftedFloor, before a conversion to integer (units).
func (f *format) stochasticConstants() (lift float32, ceiling, places, units uint32) {
	_, drop, _, _, signShift := f.castConstants()
	lift = math.Float32frombits(uint32(127+2-f.minExponent) << 23)
	return lift, math.Float32bits(f.max * lift), signShift - drop, (127 - 2 + signShift + uint32(f.mantissaBits)) << 23
}

// finitePositive reports whether the vector kernels accept scale: it must be positive and finite.
// Then only NaN scales to NaN, and the product has the sign of the element.
func finitePositive(scale float32) bool { return scale > 0 && scale <= math.MaxFloat32 }

// weylRun returns how many of n elements, starting at index, have word numbers with
// the same high half: the vector kernels count words in 32 bits.
func weylRun(index uint64, n int) int {
	return int(min(uint64(n), 1<<33-index%(1<<33)))
}
