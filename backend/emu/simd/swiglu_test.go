package simd

import "testing"

func TestMulSiLUTwins(t *testing.T) {
	sameKernels(t, 3,
		func(x [][]float32) float32 { MulSiLU(x[0], x[1], x[2]); return 0 },
		func(x [][]float32) float32 { mulSiLUGo(x[0], x[1], x[2]); return 0 })
	sameKernels(t, 2, // in place
		func(x [][]float32) float32 { MulSiLU(x[1], x[0], x[1]); return 0 },
		func(x [][]float32) float32 { mulSiLUGo(x[1], x[0], x[1]); return 0 })
	sameKernels(t, 5,
		func(x [][]float32) float32 { MulSiLUGradient(x[0], x[1], x[2], x[3], x[4]); return 0 },
		func(x [][]float32) float32 { mulSiLUGradientGo(x[0], x[1], x[2], x[3], x[4]); return 0 })
	sameKernels(t, 3,
		func(x [][]float32) float32 { MulSiLUGradient(x[0], x[2], x[0], x[1], x[2]); return 0 },
		func(x [][]float32) float32 { mulSiLUGradientGo(x[0], x[2], x[0], x[1], x[2]); return 0 })
}
