package emu

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// Casts of normally distributed values have the signal-to-noise ratios, in dB, that
// experiments with PyTorch and ml_dtypes gave for 2048×2048 values, rounded to nearest even.
// The scale of a whole tensor depends on its largest value, and integers on the scale.
func TestSignalToNoise(t *testing.T) {
	row, all := backend.PerRow, backend.PerTensor
	mx, nv := backend.Block1x32, backend.ScaleBlock{Rows: 1, Cols: 16}
	rules := map[string]struct {
		stored fp8.DType
		rule   fp8.ScaleRule
	}{
		"fp32": {fp8.F32, fp8.Exact}, "e8m0": {fp8.E8M0, fp8.RoundUp}, "e8m0:floor": {fp8.E8M0, fp8.RoundDown},
		"e4m3+fp32": {fp8.E4M3, fp8.Quotient},
	}
	const rows, cols = 512, 2048
	values := newTrial(t).noise(rows * cols)
	for _, c := range []struct {
		format string
		block  backend.ScaleBlock
		scale  string
		want   float64
	}{
		{"e4m3", all, "fp32", 31.55},
		{"e4m3", row, "fp32", 31.55},
		{"e4m3", backend.Block1x128, "fp32", 31.80},
		{"e4m3", backend.Block128x128, "fp32", 31.55},
		{"e4m3", mx, "e8m0", 31.52},
		{"e4m3", mx, "e8m0:floor", 30.65},
		{"e5m2", all, "fp32", 25.54},
		{"e5m2", mx, "e8m0", 25.54},
		{"e3m4", all, "fp32", 37.56},
		{"e2m3", all, "fp32", 30.19},
		{"e2m3", mx, "e8m0", 30.96},
		{"e2m3", mx, "e8m0:floor", 30.94},
		{"e3m2", all, "fp32", 25.57},
		{"e3m2", mx, "e8m0", 25.54},
		{"e2m1", all, "fp32", 17.30},
		{"e2m1", row, "fp32", 18.64},
		{"e2m1", mx, "e8m0", 18.76},
		{"e2m1", mx, "e8m0:floor", 18.79},
		{"e2m1", nv, "e8m0", 18.95},
		{"e2m1", nv, "e4m3+fp32", 20.43},
		{"e2m1", backend.ScaleBlock{Rows: 16, Cols: 16}, "e4m3+fp32", 19.07},
		{"e2m1", nv, "e4m3+fp32 stochastic", 17.23},
		{"int8", all, "fp32", 38.76},
		{"int8", row, "fp32", 41.65},
		{"int8", backend.Block1x128, "fp32", 43.79},
		{"int8", mx, "e8m0", 41.61},
		{"int4", all, "fp32", 13.59},
		{"int4", row, "fp32", 16.47},
		{"int4", backend.Block1x128, "fp32", 18.62},
		{"int4", mx, "e8m0", 16.84},
		{"int4", mx, "fp32", 20.26},
	} {
		tr := newTrial(t)
		x := tr.tensor("x", fp8.F32, values, rows, cols)
		d, err := fp8.ParseDType(c.format)
		require.NoError(t, err)
		cast := backend.Cast{Out: tr.vars.Tensor(backend.Output, "out", d, rows, cols)}
		format, rounding, _ := strings.Cut(c.scale, " ")
		if rounding != "" {
			cast.Rounding, cast.Control = fp8.Stochastic, tr.control(backend.Control{Seed: 1})
		}
		whole := &backend.UpdateScale{Limit: d.Max()}
		if c.block != all {
			rule := rules[format]
			cast.Rule = rule.rule
			cast.Out.Block = c.block
			h, w := c.block.ScaleShape(rows, cols)
			cast.Out.Scale = tr.vars.Tensor(backend.Output, "scale_inv", rule.stored, h, w)
			cast.ScaleInv = cast.Out.Scale
			if rule.stored == fp8.F32 {
				cast.Limit = d.Max()
			}
			whole.Outer = strings.HasSuffix(format, "+fp32")
			whole.Limit *= rule.stored.Max()
		}
		if c.block == all || whole.Outer {
			whole.History, whole.Scale = tr.tensor("amax", fp8.F32, nil, 1), tr.tensor("scale", fp8.F32, nil, 1)
			whole.ScaleInv = tr.tensor("inverse", fp8.F32, nil, 1)
			cast.Scale = whole.Scale
			if whole.Outer {
				cast.Out.Outer = whole.ScaleInv
			} else {
				cast.Out.Scale = whole.ScaleInv
			}
			tr.program.Add(&backend.Amax{X: x, Out: whole.History})
			tr.program.Add(whole)
		}
		health := tr.tensor("health", fp8.F32, nil, backend.HealthFields)
		tr.program.Add(&backend.Quantize{X: x, Out: []backend.Cast{cast}})
		tr.program.Add(&backend.CastHealth{X: x, Codes: cast.Out, Out: health})
		dev, run := tr.load(2)
		require.NoError(t, run.Run(t.Context()))
		got := -10 * math.Log10(dev.values(health)[backend.HealthNoise])
		t.Logf("%s %s %s: %.2f dB, expected %.2f", c.format, c.block, c.scale, got, c.want)
		within := 0.06
		if c.block == all && (strings.HasPrefix(c.format, "int") || c.format == "e2m1" || c.format == "e2m3") {
			within = 0.6
		}
		require.InDelta(t, c.want, got, within, "%s %s %s", c.format, c.block, c.scale)
	}
}
