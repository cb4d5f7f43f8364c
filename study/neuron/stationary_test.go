package main

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Q·diag(values)·Qᵀ has these eigenvalues, for a product Q of rotations; double, zero and
// negative ones included.
func TestEigenvalues(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 1))
	for _, values := range [][]float64{
		{2},
		{-1, 1},
		{3, 3, -2, 0},
		normal(16, 5, rng),
	} {
		n := len(values)
		a := make([]float64, n*n)
		for i, v := range values {
			a[i*n+i] = v
		}
		for range 5 * n { // reflections H = I − 2vvᵀ: H·A·H
			v := normal(n, 1, rng)
			scale(v, 1/norm(v))
			av := times(a, v)
			vav := dot(v, av)
			for i := range n {
				for j := range n {
					a[i*n+j] += -2*v[i]*av[j] - 2*av[i]*v[j] + 4*v[i]*v[j]*vav
				}
			}
		}
		want := slices.Sorted(slices.Values(values))
		require.InDeltaSlice(t, want, eigenvalues(a, n), 1e-10)
	}
	require.Equal(t, []float64{0, 0}, eigenvalues(make([]float64, 4), 2))
	require.Len(t, eigenvalues([]float64{1, math.NaN(), math.NaN(), 1}, 2), 2, "NaN ends the rounds")
}

func TestNearest(t *testing.T) {
	require.Equal(t, 0.9, nearest([]float64{-1.2, 0, 0.9, 1.2}, 1))
	require.Equal(t, -1.2, nearest([]float64{-1.2, 0, 0.9, 1.2}, -1))
}

// The gradient of the loss in w1 is μ·(w1 − A·w2) for any weights, and that in w2 μ·(w2 − A·w1)
// without a gate.
func TestMatrixIsThatOfTheGradient(t *testing.T) {
	for _, gated := range []bool{false, true} {
		rng := rand.New(rand.NewPCG(5, 1))
		s := shape{neurons: 1, dim: 4, gated: gated}
		o := outcome{run: run{shape: s, training: training{l2: 0.7}}, data: wave.sample(4, 30, rng), p: normal(s.size(), 1, rng)}
		grad := make([]float64, len(o.p))
		samples := make([]int, 30)
		for i := range samples {
			samples[i] = i
		}
		s.lossAndGrad(grad, o.p, o.data, samples, o.l2)
		want := func(w, other []float64) []float64 {
			g := slices.Clone(w)
			add(g, times(o.matrixA(), other), -1)
			scale(g, o.l2)
			return g
		}
		w1, w2 := s.w1(o.p, 0), s.w2(o.p, 0)
		require.InDeltaSlice(t, want(w1, w2), s.w1(grad, 0), 1e-9)
		if !gated {
			require.InDeltaSlice(t, want(w2, w1), s.w2(grad, 0), 1e-9)
		}
	}
}

func TestInterpolate(t *testing.T) {
	xs, ys := []float64{1, 2, 4}, []float64{10, 20, 0}
	for x, want := range map[float64]float64{0: 10, 1: 10, 1.5: 15, 2: 20, 3: 10, 4: 0, 9: 0} {
		require.Equal(t, want, interpolate(xs, ys, x), "%g", x)
	}
}
