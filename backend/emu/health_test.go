package emu

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// The expected signal-to-noise ratios, in dB, of casts of N(0, 1) come from independent
// float64 programs, for 2048² elements rounded to nearest even.
func TestCastHealthOfNormalNumbers(t *testing.T) {
	const rows, cols = 512, 1024
	tr := newTrial(t)
	x := tr.tensor("x", fp8.F32, tr.noise(rows*cols), rows, cols)
	cases := []struct {
		name  string
		codes fp8.DType
		block backend.ScaleBlock
		scale fp8.DType
		want  float64
	}{
		{"tensor", fp8.E4M3, backend.PerTensor, fp8.F32, 31.55},
		{"e5m2", fp8.E5M2, backend.PerTensor, fp8.F32, 25.54},
		{"row", fp8.E4M3, backend.PerRow, fp8.F32, 31.55},
		{"block", fp8.E4M3, backend.Block1x128, fp8.F32, 31.80},
		{"column", fp8.E4M3, backend.ScaleBlock{Rows: 128, Cols: 1}, fp8.F32, 31.80},
		{"square", fp8.E4M3, backend.Block128x128, fp8.F32, 31.55},
		{"mx", fp8.E4M3, backend.Block1x32, fp8.E8M0, 31.52},
		{"mxe5m2", fp8.E5M2, backend.Block1x32, fp8.E8M0, 25.54},
	}
	out := make([]*backend.Tensor, len(cases))
	for i, c := range cases {
		q := tr.program.Temp(c.name, c.codes, rows, cols)
		cast := backend.Cast{Out: q}
		if c.block == backend.PerTensor {
			amax := tr.program.Temp(c.name+".amax", fp8.F32, 1)
			cast.Scale, q.Scale = tr.program.Temp(c.name+".scale", fp8.F32, 1), tr.program.Temp(c.name+".scale_inv", fp8.F32, 1)
			tr.program.Add(&backend.Amax{X: x, Out: amax})
			tr.program.Add(&backend.UpdateScale{History: amax, Scale: cast.Scale, ScaleInv: q.Scale, Limit: c.codes.Max()})
		} else {
			across, along := c.block.ScaleShape(rows, cols)
			q.Block, q.Scale = c.block, tr.program.Temp(c.name+".scale_inv", c.scale, across, along)
			if cast.ScaleInv = q.Scale; c.scale == fp8.F32 {
				cast.Limit = c.codes.Max()
			} else {
				cast.Rule = fp8.RoundUp
			}
		}
		tr.program.Add(&backend.Quantize{X: x, Out: []backend.Cast{cast}})
		out[i] = tr.tensor(c.name+".health", fp8.F32, nil, backend.HealthFields)
		tr.program.Add(&backend.CastHealth{X: x, Codes: q, Out: out[i]})
	}
	d := tr.run()
	for i, c := range cases {
		health := d.values(out[i])
		require.InDelta(t, c.want, -10*math.Log10(health[backend.HealthNoise]), 0.05, c.name)
		require.InDelta(t, 1, health[backend.HealthRMS], 0.005, c.name)
		require.InDelta(t, 3, health[backend.HealthKurtosis], 0.03, c.name)
	}
}

// TestKurtosis measures tensors with known moments, one of them with squares that FP32 cannot
// hold.
func TestKurtosis(t *testing.T) {
	for _, c := range []struct {
		name          string
		values        []float32
		rms, kurtosis float64
	}{
		{"equal", []float32{3, -3, 3, -3}, 3, 1},
		{"outlier", []float32{0, 0, 8, 0}, 4, 4},
		{"two", []float32{1, 1, 1, 3}, math.Sqrt(3), 21. / 9},
		{"tiny", []float32{0, 0x1p-100, 0, 0}, 0x1p-101, 4},
		{"zero", make([]float32, 4), 0, 0},
		{"infinite", []float32{float32(math.Inf(1)), 1, 1, 1}, math.Inf(1), math.NaN()},
	} {
		tr := newTrial(t)
		x := tr.tensor("x", fp8.F32, c.values, 1, 4)
		codes := tr.program.Temp("codes", fp8.E4M3, 1, 4)
		codes.Scale = tr.tensor("scale_inv", fp8.F32, []float32{1}, 1)
		health := tr.tensor("health", fp8.F32, nil, backend.HealthFields)
		tr.program.Add(&backend.Quantize{X: x, Out: []backend.Cast{{Out: codes}}})
		tr.program.Add(&backend.CastHealth{X: x, Codes: codes, Out: health})
		got := tr.run().values(health)
		if math.IsNaN(c.kurtosis) {
			require.True(t, math.IsNaN(got[backend.HealthKurtosis]), c.name)
		} else {
			require.InEpsilon(t, 1+c.kurtosis, 1+got[backend.HealthKurtosis], 1e-6, c.name)
		}
		require.Equal(t, float32(c.rms), float32(got[backend.HealthRMS]), c.name)
	}
}
