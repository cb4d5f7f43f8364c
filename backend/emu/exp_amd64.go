//go:build !noasm

package emu

import "golang.org/x/sys/cpu"

var (
	haveExpAVX512 = cpu.X86.HasAVX512F && cpu.X86.HasAVX512DQ
	haveExpAVX2   = cpu.X86.HasAVX2
)

// expSum has the bits of expSumGo.
func expSum(dst, src []float32, scale, shift float32) float32 {
	switch {
	case len(src) == 0:
		return 0
	case haveExpAVX512:
		dst = dst[:len(src)]
		return expSumAVX512(&dst[0], &src[0], len(src), scale, shift)
	case haveExpAVX2:
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
	if len(x) == 0 || !haveExpAVX512 {
		return maximumGo(x)
	}
	return maximumAVX512(&x[0], len(x))
}

//go:noescape
func expSumAVX512(dst, src *float32, n int, scale, shift float32) float32

//go:noescape
func maximumAVX512(x *float32, n int) float32

// expLanesAVX2 is expLanes for n elements, a multiple of 16.
//
//go:noescape
func expLanesAVX2(lanes *[16]float32, dst, src *float32, n int, scale, shift float32)
