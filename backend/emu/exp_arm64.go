//go:build !noasm

package emu

// expConstants are the constants of expf in its order of use.
//
//lint:ignore U1000 used in assembly
var expConstants = [13]float32{
	expLowest, expHighest, log2e, expRound, ln2Hi, ln2Lo, expP5, expP4, expP3, expP2, expP1, expP0, 1,
}

// expSum has the bits of expSumGo. What does not fill sixteen lanes is left to
// the plain Go.
func expSum(dst, src []float32, scale, shift float32) float32 {
	var lanes [16]float32
	dst = dst[:len(src)]
	whole := wholeVectors(len(src))
	if whole > 0 {
		expLanesNEON(&lanes, &dst[0], &src[0], whole, scale, shift)
	}
	expLanes(&lanes, dst[whole:], src[whole:], scale, shift)
	return foldLanes(&lanes)
}

// maximum has the value of maximumGo; of zeros, either may be the largest.
func maximum(x []float32) float32 {
	whole := wholeVectors(len(x))
	top := maximumGo(x[whole:])
	if whole > 0 {
		top = max(top, maximumNEON(&x[0], whole))
	}
	return top
}

// expLanesNEON is expLanes for n elements, a multiple of 16.
//
//go:noescape
func expLanesNEON(lanes *[16]float32, dst, src *float32, n int, scale, shift float32)

// maximumNEON is maximumGo for n elements, a multiple of 16, and at least one
// such.
//
//go:noescape
func maximumNEON(x *float32, n int) float32
