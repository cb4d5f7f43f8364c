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
	GELU(got, []float32{-13, 0, 40, nan})
	require.InEpsilon(t, -13*0.5*math.Erfc(13/math.Sqrt2), got[0], 2e-7, "no cancellation for large negative x")
	require.Equal(t, []float32{0, 40}, got[1:3])
	require.True(t, math.IsNaN(float64(got[3])))
}

func TestNormal(t *testing.T) {
	for x := -14.0; x < 14; x += 0.001 {
		cdf, density := normal(x)
		require.InEpsilon(t, 0.5*math.Erfc(-x/math.Sqrt2), cdf, 4e-9, x)
		require.InEpsilon(t, math.Exp(-0.5*x*x)/math.Sqrt(2*math.Pi), density, 1e-12, x)
	}
	for _, x := range []float64{-20, -1e30, math.Inf(-1)} {
		cdf, density := normal(x)
		require.Zero(t, float32(cdf))
		require.Zero(t, float32(density))
	}
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
