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
	_, drop, _, signShift := f.castConstants()
	lift = math.Float32frombits(uint32(127+2-f.minExponent) << 23)
	return lift, math.Float32bits(f.max * lift), signShift - drop, (127 - 2 + signShift + uint32(f.Mantissa)) << 23
}

// finitePositive reports whether the vector kernels accept scale: it must be positive and finite.
// Then only NaN scales to NaN, and the product has the sign of the element.
func finitePositive(scale float32) bool { return scale > 0 && scale <= math.MaxFloat32 }

// weylRun returns how many of n elements, starting at index, have word numbers with
// the same high half: the vector kernels count words in 32 bits.
func weylRun(index uint64, n int) int {
	return int(min(uint64(n), 1<<33-index%(1<<33)))
}

// decodeWords holds the constants with which vector kernels decode a format of at most
// four exponent bits through F16.
type decodeWords struct {
	fields           uint16 // mask of the magnitude at the place of F16's fields
	toFields, toSign uint16 // factors that shift a code's magnitude and sign to their places in F16
	largest          uint16 // magnitude of the largest finite value, shifted
	sign, top        uint16 // F16's sign and top exponent
	rebias           float32
}

// upperByte marks E5M2, whose codes are the upper bytes of F16 codes.
var upperByte = new(decodeWords)

// newDecodeWords returns nil for a format that F16 cannot express in this way: with more
// exponent bits, with a NaN in place of -0, with an infinity beside finite codes, and an
// integer format.
func newDecodeWords(f *format) *decodeWords {
	switch {
	case f.Kind != Float || f.Bits > 8 || f.Special > IEEE:
		return nil
	case f.Exponent == 5 && f.Mantissa == 2 && f.Special == IEEE && f.Bias == 15:
		return upperByte
	case f.Exponent > 4:
		return nil
	}
	shift := 10 - f.Mantissa
	return &decodeWords{
		fields: uint16((f.sign - 1) << shift), toFields: 1 << shift, toSign: 1 << (16 - f.Bits),
		largest: uint16(f.maxCode << shift), sign: 0x8000, top: 0x7c00,
		rebias: math.Float32frombits(uint32(127+15-f.Bias) << 23),
	}
}
