package gaudi

import "math"

// Functions of a whole number that the device would compute with bits that nobody
// knows, and of which those of a sum follow from those of its parts, are looked up
// digit by digit: a number below 2^24, which F32 holds exactly, has three of eight
// bits.
const digits, digitBase = 3, 256

// digits are those of an F32 scalar, {1, 1, digits}, the lowest first; what is above
// 2^24−1 counts as that.
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

// counting is the table of the numbers from 0 to n−1.
func (b *builder) counting(n int, sizes ...uint64) value {
	list := make([]float32, n)
	for i := range list {
		list[i] = float32(i)
	}
	return b.table(list, sizes...)
}
