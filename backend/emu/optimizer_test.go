package emu

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

func TestSumSquares(t *testing.T) {
	tr := newTrial(t)
	a := tr.tensor("a", fp8.F32, tr.noise(5000), 50, 100)
	wide := tr.tensor("wide", fp8.F32, tr.noise(70), 7, 10)
	gaps := &backend.Tensor{Name: "gaps", DType: fp8.F32, Shape: []int{7, 8}, Class: wide.Class, Base: wide, Offset: 1, LD: 10}
	c := tr.tensor("c", fp8.F32, []float32{1e-3, 1e4}, 3)
	out := tr.tensor("out", fp8.F32, nil, 1)
	tr.program.Add(&backend.SumSquares{X: []*backend.Tensor{a, gaps, c}, Out: out})
	d := tr.run()
	var want float64
	for _, x := range []*backend.Tensor{a, gaps, c} {
		for _, v := range d.values(x) {
			want += v * v
		}
	}
	require.Equal(t, float32(want), float32(d.values(out)[0]))
}

func TestStepGate(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct {
		sum, clip  float32
		amax       []float32
		skip       float64
		norm, coef float64
	}{
		{sum: 16, norm: 4, coef: 1},
		{sum: 16, clip: 8, norm: 4, coef: 1},
		{sum: 16, clip: 1, norm: 4, coef: 0.25},
		{sum: 0, clip: 1, norm: 0, coef: 1},
		{sum: 16, amax: []float32{0, 3, math.MaxFloat32}, norm: 4, coef: 1},
		{sum: 16, amax: []float32{0, inf, 1}, norm: 4, coef: 1, skip: 1},
		{sum: 16, amax: []float32{0, 1, nan}, norm: 4, coef: 1, skip: 1},
		{sum: inf, norm: math.Inf(1), coef: 1, skip: 1},
		{sum: nan, norm: math.NaN(), coef: 1, skip: 1},
	} {
		tr := newTrial(t)
		op := &backend.StepGate{
			SumSquares: tr.tensor("sum", fp8.F32, []float32{c.sum}, 1),
			Step:       tr.tensor("step", fp8.I32, []float32{41}, 1),
			GradNorm:   tr.tensor("norm", fp8.F32, nil, 1),
			Coef:       tr.tensor("coef", fp8.F32, nil, 1),
			Skip:       tr.tensor("skip", fp8.I32, []float32{7}, 1),
			Clip:       c.clip,
		}
		if c.amax != nil {
			op.Amax = tr.tensor("amax", fp8.F32, c.amax, len(c.amax))
		}
		tr.program.Add(op)
		d := tr.run()
		require.Equal(t, c.skip, d.values(op.Skip)[0], "%+v", c)
		require.Equal(t, 42-c.skip, d.values(op.Step)[0])
		require.InDelta(t, c.coef, d.values(op.Coef)[0], 1e-6)
		if math.IsNaN(c.norm) {
			require.True(t, math.IsNaN(d.values(op.GradNorm)[0]))
		} else {
			require.Equal(t, c.norm, d.values(op.GradNorm)[0])
		}
	}
}
