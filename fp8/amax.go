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

// PushHistory moves the rows of history, which is [window, len(amax)], newest
// first, down by one, forgetting the last, and writes amax to the first. It panics
// if history has no row.
func PushHistory(history, amax []float32) {
	copy(history[len(amax):], history)
	copy(history, amax)
}

// HistoryMax writes the largest amax of each record over the whole window to
// dst; history is [window, len(dst)]. NaN and infinity win, as in MaxAmax.
func HistoryMax(dst, history []float32) {
	clear(dst)
	if len(dst) == 0 {
		return
	}
	for ; len(history) > 0; history = history[len(dst):] {
		for i, a := range history[:len(dst)] {
			dst[i] = MaxAmax(dst[i], a)
		}
	}
}
