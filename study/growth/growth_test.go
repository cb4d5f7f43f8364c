package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
)

// Exponents match central differences of ln|f| over ln c.
func TestExponentsMatchDifferences(t *testing.T) {
	for _, a := range activations {
		for _, r := range angles {
			if r.z < 0 {
				continue
			}
			for _, c := range []float64{0.25, 1, 4, 16} {
				const h = 1e-5
				slope := (math.Log(math.Abs(a.at(r, c*math.Exp(h)))) - math.Log(math.Abs(a.at(r, c*math.Exp(-h))))) / (2 * h)
				require.InDelta(t, slope, a.exponent(r, c), 1e-8, "%s, %s, %g", a.name, r.name, c)
			}
		}
	}
}

func TestActivationsByHand(t *testing.T) {
	want := map[string]float64{
		"SwiGLU": 4 / (1 + math.Exp(-2)), "GeGLU": 4 * 0.9772498680518208, "ReGLU": 4, "GLU (sigmoid)": 2 / (1 + math.Exp(-2)),
		"SiLU": 2 / (1 + math.Exp(-2)), "GELU": 2 * 0.9772498680518208, "ReLU": 2, "ReLU²": 4,
	}
	require.Len(t, activations, len(want))
	for _, a := range activations {
		require.InDelta(t, want[a.name], a.at(angles[0], 2), 1e-12, a.name)
	}
}

// Smoothing scales are powers of two, in [√(m/k), 2√(m/k)), from the largest values of a channel.
func TestSmoothingScales(t *testing.T) {
	a, w3 := make([]float32, 2*channels), make([]float32, 2*channels)
	for i := range a {
		a[i], w3[i] = 1, 1
	}
	a[channels] = -64                                             // channel 0: √(64/1) = 8
	w3[1] = -0.125                                                // of channel 1, whose largest is 1
	a[2], a[channels+2], w3[2], w3[channels+2] = 9, 3, 0.5, -0.25 // √18: 8
	s := smoothing(a, w3)
	require.Equal(t, []float32{8, 1, 8, 1}, s[:4])
	require.Equal(t, a, multiplied(divided(a, s), s))
}

// A cast saturates, flushes, and keeps three bits of mantissa.
func TestThroughE4M3(t *testing.T) {
	require.Equal(t, []float32{448, -448, 0, 16, 0.001953125}, throughE4M3([]float32{1e6, -449, 0.0009, 16.9, 0.002}, 1))
	require.Equal(t, []float32{224, 16}, throughE4M3([]float32{1000, 16.5}, 2), "scaled by 2")
}

// The scale of the largest value is the largest power of two that does not saturate.
func TestCurrentScale(t *testing.T) {
	for _, amax := range []float32{1, 448, 450, 1 << 20, 0.001} {
		s := currentScale([]float32{0, -amax})
		require.LessOrEqual(t, s*amax, float32(448))
		require.Greater(t, 2*s*amax, float32(448))
		fraction, _ := math.Frexp(float64(s))
		require.Equal(t, 0.5, fraction)
	}
	require.Equal(t, float32(448), fp8.E4M3.Max())
}

// An outlier of c² is in token 0 of channel 0 alone, whose rows are equal elsewhere too.
func TestProblem(t *testing.T) {
	p := newProblem(1)
	a, b := p.hidden(1), p.hidden(1<<10)
	require.Equal(t, a[1:], b[1:])
	require.Equal(t, float32(1<<20), b[0])
	require.Equal(t, p.up[channels], p.gate[channels])
	require.NotEqual(t, p.up[1], p.gate[1])
	require.True(t, p.sameInFP32(1<<10))
}

func TestErrors(t *testing.T) {
	a, w := make([]float32, channels), make([]float32, channels)
	for i := range a {
		a[i], w[i] = 2, 1
	}
	cast := make([]float32, channels)
	copy(cast, a)
	cast[0] = 1
	e := errorsOf(a, cast, w, make([]float32, channels))
	require.Equal(t, castErrors{outlier: 0.5, others: 0, weight: 1}, e)
	require.Equal(t, 1.0, e.worst())
}
