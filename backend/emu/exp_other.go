//go:build (!amd64 && !arm64) || noasm

package emu

func expSum(dst, src []float32, scale, shift float32) float32 {
	return expSumGo(dst, src, scale, shift)
}

func maximum(x []float32) float32 { return maximumGo(x) }
