//go:build !noasm

package emu

// expVectors are the constants of expf as wide as the narrower kernels want
// them, in the order of zmm_amd64.h.
//
//lint:ignore U1000 used in assembly
var expVectors = func() (v [13][8]float32) {
	for i, c := range [13]float32{
		expLowest, expHighest, log2e, expRound, ln2Hi, ln2Lo, expP5, expP4, expP3, expP2, expP1, expP0, 1,
	} {
		for lane := range v[i] {
			v[i][lane] = c
		}
	}
	return v
}()

// expSum has the bits of expSumGo.
func expSum(dst, src []float32, scale, shift float32) float32 {
	switch {
	case len(src) == 0:
		return 0
	case haveAVX512:
		dst = dst[:len(src)]
		return expSumAVX512(&dst[0], &src[0], len(src), scale, shift)
	case haveAVX2:
		return expSumAVX2(dst, src, scale, shift)
	}
	return expSumGo(dst, src, scale, shift)
}

// expSumAVX2 leaves what does not fill sixteen lanes to the plain Go.
func expSumAVX2(dst, src []float32, scale, shift float32) float32 {
	var lanes [16]float32
	dst = dst[:len(src)]
	whole := len(src) &^ 15
	if whole > 0 {
		expLanesAVX2(&lanes, &dst[0], &src[0], whole, scale, shift)
	}
	expLanes(&lanes, dst[whole:], src[whole:], scale, shift)
	return foldLanes(&lanes)
}

// maximum has the value of maximumGo; of zeros, either may be the largest.
func maximum(x []float32) float32 {
	switch {
	case haveAVX512 && len(x) > 0:
		return maximumAVX512(&x[0], len(x))
	case haveAVX2 && len(x) >= 8:
		whole := len(x) &^ 7
		return max(maximumAVX2(&x[0], whole), maximumGo(x[whole:]))
	}
	return maximumGo(x)
}

//go:noescape
func expSumAVX512(dst, src *float32, n int, scale, shift float32) float32

//go:noescape
func maximumAVX512(x *float32, n int) float32

// maximumAVX2 takes multiples of 8.
//
//go:noescape
func maximumAVX2(x *float32, n int) float32

// expLanesAVX2 is expLanes for n elements, a multiple of 16.
//
//go:noescape
func expLanesAVX2(lanes *[16]float32, dst, src *float32, n int, scale, shift float32)
