package simd

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestActivationEdges(t *testing.T) {
	nan := float32(math.NaN())
	got := make([]float32, 4)
	ReLU(got, []float32{-1, 0, 2, nan})
	require.Equal(t, []float32{0, 0, 2}, got[:3])
	require.True(t, math.IsNaN(float64(got[3])))
	ReLUGradient(got, []float32{-1, 0, 2, 1}, []float32{nan, 5, 6, -7})
	require.Equal(t, []float32{0, 0, 6, -7}, got)
}

func TestActivationTwins(t *testing.T) {
	for _, k := range []struct{ kernel, twin func(dst, x []float32) }{{ReLU, reluGo}, {GELU, geluGo}} {
		sameKernels(t, 2,
			func(x [][]float32) float32 { k.kernel(x[0], x[1]); return 0 },
			func(x [][]float32) float32 { k.twin(x[0], x[1]); return 0 })
		sameKernels(t, 1, // in place
			func(x [][]float32) float32 { k.kernel(x[0], x[0]); return 0 },
			func(x [][]float32) float32 { k.twin(x[0], x[0]); return 0 })
	}
	for _, k := range []struct{ kernel, twin func(dx, x, dy []float32) }{
		{ReLUGradient, reluGradientGo}, {GELUGradient, geluGradientGo},
	} {
		sameKernels(t, 3,
			func(x [][]float32) float32 { k.kernel(x[0], x[1], x[2]); return 0 },
			func(x [][]float32) float32 { k.twin(x[0], x[1], x[2]); return 0 })
		sameKernels(t, 2, // in place
			func(x [][]float32) float32 { k.kernel(x[0], x[1], x[0]); return 0 },
			func(x [][]float32) float32 { k.twin(x[0], x[1], x[0]); return 0 })
	}
}
