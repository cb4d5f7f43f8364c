//go:build !noasm

package emu

import "golang.org/x/sys/cpu"

var haveExpAVX512 = cpu.X86.HasAVX512F && cpu.X86.HasAVX512DQ

// expSum has the bits of expSumGo.
func expSum(dst, src []float32, scale, shift float32) float32 {
	if len(src) == 0 || !haveExpAVX512 {
		return expSumGo(dst, src, scale, shift)
	}
	dst = dst[:len(src)]
	return expSumAVX512(&dst[0], &src[0], len(src), scale, shift)
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
