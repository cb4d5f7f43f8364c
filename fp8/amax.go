package fp8

import "math"

// MaxAmax returns the larger of two amaxes. An amax is never negative, and
// the bits of such floats are ordered like the floats, with infinity above
// every finite value and NaN above infinity: so one bad element makes the
// amax bad, in any order of reduction. An integer atomicMax on a GPU gives
// the same bits. Signs are ignored.
func MaxAmax(a, b float32) float32 {
	return math.Float32frombits(max(math.Float32bits(a)&^signBit, math.Float32bits(b)&^signBit))
}

// Amax returns the largest magnitude in x, by the rule of MaxAmax; 0 if x is
// empty.
func Amax(x []float32) float32 {
	n, amax := amaxVectors(x)
	top := math.Float32bits(amax)
	for _, v := range x[n:] {
		top = max(top, math.Float32bits(v)&^signBit)
	}
	return math.Float32frombits(top)
}
