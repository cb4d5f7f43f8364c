package fp8

import "math"

// MaxAmax returns the larger of two amaxes, ignoring their signs. Infinity
// exceeds every finite value and NaN exceeds infinity, so one bad element
// shows in the amax in any order of reduction.
//
// MaxAmax compares bit patterns, which non-negative floats order by value. An
// integer atomicMax on a GPU returns the same bits.
func MaxAmax(a, b float32) float32 {
	return math.Float32frombits(max(math.Float32bits(a)&^signBit, math.Float32bits(b)&^signBit))
}

// Amax returns the largest magnitude in x, reduced with MaxAmax; 0 if x is
// empty.
func Amax(x []float32) float32 {
	n, amax := amaxVectors(x)
	top := math.Float32bits(amax)
	for _, v := range x[n:] {
		top = max(top, math.Float32bits(v)&^signBit)
	}
	return math.Float32frombits(top)
}
