package main

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// Gradients match central differences, for every weight that trains.
func TestGradientMatchesCentralDifferences(t *testing.T) {
	for name, s := range map[string]shape{
		"bilinear":    {neurons: 1, dim: 3},
		"gated":       {neurons: 1, dim: 3, gated: true},
		"two neurons": {neurons: 2, dim: 3, gated: true, trainW3: true},
	} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(7, 7))
			d := power.sample(3, 20, rng)
			p := normal(s.size(), 1, rng)
			samples := []int{0, 3, 3, 11}
			grad, unused := make([]float64, len(p)), make([]float64, len(p))
			s.lossAndGrad(grad, p, d, samples, 0.3)
			for i, want := range grad {
				if i >= len(s.rows(p)) && !s.trainW3 {
					require.Zero(t, want)
					continue
				}
				const h = 1e-5
				w := p[i]
				p[i] = w + h
				up := s.lossAndGrad(unused, p, d, samples, 0.3)
				p[i] = w - h
				down := s.lossAndGrad(unused, p, d, samples, 0.3)
				p[i] = w
				require.InDelta(t, want, (up-down)/(2*h), 1e-7*(1+math.Abs(want)), "weight %d", i)
			}
		})
	}
}

// output is what the definition says, by hand.
func TestOutput(t *testing.T) {
	p := []float64{1, 2, 3, -1, 0, 1, 1, 1, 2, -3} // w1, w2 of two neurons with dim 2, then w3
	x := []float64{2, 1}
	require.Equal(t, 2*(4*5)-3*(1*3.0), shape{neurons: 2, dim: 2}.output(p, x))
	silu := func(z float64) float64 { return z / (1 + math.Exp(-z)) }
	require.InDelta(t, 2*4*silu(5)-3*1*silu(3), shape{neurons: 2, dim: 2, gated: true}.output(p, x), 1e-12)
}

// One step of Adam moves every weight by lr against its gradient's sign. A decoupled decay acts
// beside it, a coupled one within the gradient.
func TestFirstStep(t *testing.T) {
	s := shape{neurons: 1, dim: 1}
	d := data{dim: 1, x: []float64{1}, y: []float64{10}}
	step := func(tr training) []float64 {
		p := []float64{1, 2, 1} // f = 2, gradients −16 and −8
		tr.lr, tr.steps = 0.1, 1
		rootV := tr.train(s, p, d, nil)
		if tr.l2 == 0 {
			require.InDelta(t, 12, rootV, 1e-9) // the mean of 16 and 8: bias is corrected
		}
		return p
	}
	require.InDeltaSlice(t, []float64{1.1, 2.1, 1}, step(training{}), 1e-9)
	require.InDeltaSlice(t, []float64{1.1 - 0.05, 2.1 - 0.1, 1}, step(training{decay: 0.5}), 1e-9)
	require.InDeltaSlice(t, []float64{0.9, 1.9, 1}, step(training{l2: 100}), 1e-9)
}

// A teacher's rows have the angle, and its samples are y of them.
func TestTeacher(t *testing.T) {
	target := target{angle: 60, y: func(p, q, _ float64) float64 { return p * q }}
	d := target.sample(8, 200_000, rand.New(rand.NewPCG(1, 1)))
	mean := 0.0
	for _, y := range d.y {
		mean += y / float64(len(d.y))
	}
	require.InDelta(t, 0.5, mean, 0.01) // E[(v1·x)(v2·x)] = cos 60°
}

func TestClosedForm(t *testing.T) {
	for _, c := range []struct {
		angle, mu float64
		gated     bool
		want      float64
	}{
		{60, 0, false, 0.5},
		{60, 5, false, 10.0 / 15},
		{60, 5, true, 1}, // the threshold with a gate
		{60, 2.5, true, 10.0 / 15},
		{60, 10, false, 1}, // the threshold
		{60, 100, false, 1},
		{120, 5, false, -10.0 / 15},
		{120, 11, false, -1},
		{0, 0, false, 1},
		{180, 0, false, -1},
	} {
		require.InDelta(t, c.want, closedForm(c.angle, c.mu, c.gated), 1e-12, "%+v", c)
	}
	require.InDelta(t, 1, closedForm(30, threshold(30, true)*(1-1e-9), true), 1e-6, "continuous at the threshold")
}

// A bilinear unit trained under L2 has the angle of the closed form, below and above the threshold.
func TestBilinearUnitFollowsTheClosedForm(t *testing.T) {
	for _, mu := range []float64{0, 6, 11} {
		for seed := range uint64(2) {
			o := bilinear(60, mu).at(seed + 1)
			require.InDelta(t, closedForm(60, mu, false), o.cos(0), 0.09, "μ %g, seed %d", mu, seed+1)
			if mu > 0 {
				s := o.stationary()
				require.Less(t, s.w1, 1e-2)
				require.Less(t, s.w2, 1e-2)
			}
		}
	}
}

// A unit that outputs 0 has not learned, the teacher itself has.
func TestLearned(t *testing.T) {
	s := shape{neurons: 1, dim: 2}
	d := data{dim: 2, x: []float64{1, 0, 0, 1, 1, 1}, y: []float64{3, 0, 3}} // 3·x0·(x0+0·x1)
	require.True(t, (&outcome{run: run{shape: s}, data: d, p: []float64{3, 0, 1, 0, 1}}).learned())
	require.False(t, (&outcome{run: run{shape: s}, data: d, p: make([]float64, 5)}).learned())
}
