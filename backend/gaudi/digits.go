package gaudi

import "math"

// Some functions of an integer have undocumented last bits on the device, but a value for
// a sum follows from the values of its parts. They are looked up digit by digit: an
// integer below 2^24, which F32 holds exactly, has three base-256 digits.
const digits, digitBase = 3, 256

// digits returns the base-256 digits of an F32 scalar, {1, 1, digits}, lowest first;
// larger values count as 2^24−1.
func (b *builder) digits(count value) value {
	place := make([]float32, digits) // 1/base^d, exact
	for d := range place {
		place[d] = float32(math.Pow(digitBase, -float64(d)))
	}
	count = b.min(count, b.constant(1<<24-1))
	shifted := b.floor(b.mul(count, b.table(place, 1, 1, digits)))
	above := b.floor(b.mul(shifted, b.constant(1.0/digitBase)))
	return b.sub(shifted, b.mul(above, b.constant(digitBase)))
}

// arange returns the table of the integers from 0 to n−1.
func (b *builder) arange(n int, sizes ...uint64) value {
	list := make([]float32, n)
	for i := range list {
		list[i] = float32(i)
	}
	return b.table(list, sizes...)
}
