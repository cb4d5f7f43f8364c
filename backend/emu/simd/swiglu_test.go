package simd

import "testing"

func TestGatedTwins(t *testing.T) {
	sameKernels(t, 3,
		func(x [][]float32) float32 { GatedProduct(x[0], x[1], x[2]); return 0 },
		func(x [][]float32) float32 { gatedProductGo(x[0], x[1], x[2]); return 0 })
	sameKernels(t, 2, // in place
		func(x [][]float32) float32 { GatedProduct(x[1], x[0], x[1]); return 0 },
		func(x [][]float32) float32 { gatedProductGo(x[1], x[0], x[1]); return 0 })
	sameKernels(t, 5,
		func(x [][]float32) float32 { GatedGradient(x[0], x[1], x[2], x[3], x[4]); return 0 },
		func(x [][]float32) float32 { gatedGradientGo(x[0], x[1], x[2], x[3], x[4]); return 0 })
	sameKernels(t, 3,
		func(x [][]float32) float32 { GatedGradient(x[0], x[2], x[0], x[1], x[2]); return 0 },
		func(x [][]float32) float32 { gatedGradientGo(x[0], x[2], x[0], x[1], x[2]); return 0 })
}
