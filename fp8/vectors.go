//go:build (amd64 || arm64) && !noasm

package fp8

import "math"

// Vectors round at random with the code on top of 32 bits and its fraction below.
// They multiply numbers by lift, a power of two that makes liftedFloor of the
// smallest normal one: its exponent is then 1 in as many bits as the format has
// for exponents.
const liftedFloor = 4

// topConstants returns lift, the largest number times lift, how far the bits of a
// number move up to where its code is on top, and what a number below liftedFloor
// is multiplied by to get there.
func (f *format) topConstants() (lift float32, ceiling, places, units uint32) {
	_, drop, _, _, signShift := f.castConstants()
	lift = math.Float32frombits(uint32(127+2-f.minExponent) << 23)
	return lift, math.Float32bits(f.max * lift), signShift - drop, (127 - 2 + signShift + uint32(f.mantissaBits)) << 23
}

// usual reports whether scale is one that vectors take: positive and finite. Then
// only a NaN becomes one, and the sign is that of the element.
func usual(scale float32) bool { return scale > 0 && scale <= math.MaxFloat32 }

// randomRun is how many of n elements from index on have words whose numbers have
// the same high half: vectors count in 32 bits.
func randomRun(index uint64, n int) int {
	return int(min(uint64(n), 1<<33-index%(1<<33)))
}
