package emu

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

var (
	infinite = float32(math.Inf(1))
	notANum  = float32(math.NaN())
)

func TestSmoothScale(t *testing.T) {
	run := func(channel, weight []float32, change func(*backend.SmoothScale)) (d *device, op *backend.SmoothScale) {
		tr := newTrial(t)
		n := len(weight)
		vector := func(name string, n int, values ...float32) *backend.Tensor {
			return tr.tensor(name, fp8.F32, values, n)
		}
		m := tr.tensor("channel", fp8.F32, channel, len(channel)/n, n)
		op = &backend.SmoothScale{
			SmoothMax: m, ChannelMax: m, WeightMax: vector("weight", n, weight...),
			HAmax: vector("h_amax", 1, 1), WAmax: vector("w_amax", 1, 1),
			C: vector("c", n), InvC: vector("inv_c", n),
			HScale: vector("h", 1), HScaleInv: vector("h_inv", 1),
			WScale: vector("w", 1), WScaleInv: vector("w_inv", 1),
			Balanced: true, HLimit: 448, WLimit: 240, HPow2: true, WPow2: true,
		}
		if change != nil {
			change(op)
		}
		tr.program.Add(op)
		return tr.run(), op
	}
	tiny := math.Nextafter32(4, 5)
	// A window of two rows, whose larger value counts. √(m/k) is 1, 2, a bit more than 2,
	// 1/8; then a dead channel, a zero weight, and both clamps.
	window := []float32{1, 4, tiny, 1, 0, 5, 1e30, 1e-20, 1, 1, 1, 1, 0, 1, 1, 0}
	weight := []float32{1, 1, 1, 64, 3, 0, 1e-10, 1e20}
	d, op := run(window, weight, nil)
	require.Equal(t, []float64{1, 2, 4, 0.125, 1, 1, 1 << 30, 1.0 / (1 << 30)}, d.values(op.C))
	for i, c := range d.values(op.C) {
		require.Equal(t, 1/c, d.values(op.InvC)[i])
	}
	// Channel 6 has the largest h, 1e30/2^30 = 2^69.7, and 448 is 2^8.8;
	// channel 7 the largest w, 1e20/2^30 = 2^36.4, and 240 is 2^7.9.
	require.EqualValues(t, float32(1e30)/(1<<30), d.values(op.HAmax)[0])
	require.EqualValues(t, float32(1e20)/(1<<30), d.values(op.WAmax)[0])
	require.Equal(t, math.Ldexp(1, -61), d.values(op.HScale)[0])
	require.Equal(t, math.Ldexp(1, -29), d.values(op.WScale)[0])
	require.Equal(t, math.Ldexp(1, 61), d.values(op.HScaleInv)[0])
	require.Equal(t, math.Ldexp(1, 29), d.values(op.WScaleInv)[0])

	d, op = run(window, weight, func(o *backend.SmoothScale) { o.Exact, o.Margin = true, 1 })
	require.Equal(t, []float64{2, 4}, d.values(op.C)[:2])
	require.InEpsilon(t, 2*math.Sqrt(float64(tiny)), d.values(op.C)[2], 1e-7)
	require.Equal(t, []float64{1, 1, 1 << 30, 1.0 / (1 << 30)}, d.values(op.C)[4:])

	// Not balanced: c is the maximum and does not depend on the weights.
	d, op = run(window, weight, func(o *backend.SmoothScale) { o.Balanced = false })
	require.Equal(t, []float64{1, 4, 8, 1, 1, 8, 1 << 30, 1.0 / (1 << 30)}, d.values(op.C))
	d, op = run(window, weight, func(o *backend.SmoothScale) { o.Balanced, o.Exact, o.Margin = false, true, -2 })
	require.Equal(t, []float64{0.25, 1, float64(tiny / 4), 0.25, 1, 1.25, 1 << 30, 1.0 / (1 << 30)}, d.values(op.C))

	d, op = run([]float32{infinite, 4}, []float32{1, 1}, nil)
	require.Equal(t, []float64{1, 2}, d.values(op.C))
	require.Equal(t, 1.0, d.values(op.HScale)[0], "an infinite maximum gives scale 1")
	require.Equal(t, 64.0, d.values(op.WScale)[0])
	require.True(t, math.IsInf(d.values(op.HAmax)[0], 1), "an infinite maximum shows in the amax")
	d, op = run([]float32{notANum, 4}, []float32{1, 1}, nil)
	require.True(t, math.IsNaN(d.values(op.HAmax)[0]))
}

func TestSmoothingScaleOfInvalidMaximum(t *testing.T) {
	for _, q := range []float64{0, -1, math.Inf(1), math.NaN()} {
		require.EqualValues(t, 1, smoothingScale(q, 5, false), q)
		require.EqualValues(t, 1, smoothingScale(q, 5, true), q)
	}
}

// A token's smoothing scale depends on its row alone, not on the rest of the batch.
func TestTokenScales(t *testing.T) {
	for _, shape := range oddShapes {
		rows, cols := shape[0], shape[1]
		for _, exact := range []bool{false, true} {
			for _, ofUp := range []bool{false, true} {
				tr := newTrial(t)
				up := tr.tensor("up", fp8.BF16, tr.noise(rows*cols), rows, cols)
				gate := tr.tensor("gate", fp8.F32, tr.noise(rows*cols), rows, cols)
				da := tr.tensor("da", fp8.F32, tr.noise(rows*cols), rows, cols)
				f32 := func(name string) *backend.Tensor { return tr.tensor(name, fp8.F32, nil, rows, cols) }
				a, h, du, dg, du1, dg1 := f32("a"), f32("h"), f32("du"), f32("dg"), f32("du1"), f32("dg1")
				r := tr.tensor("r", fp8.F32, nil, rows)
				tr.program.Add(&backend.SwiGLU{Up: up, Gate: gate, Out: []backend.Cast{{Out: a}}})
				tr.program.Add(&backend.SwiGLU{Up: up, Gate: gate, TokenScale: r, Exact: exact, ScaleOfUp: ofUp, Out: []backend.Cast{{Out: h}}})
				for _, g := range []struct{ scale, du, dg *backend.Tensor }{{nil, du, dg}, {r, du1, dg1}} {
					tr.program.Add(&backend.SwiGLUGrad{
						DOut: da, Up: up, Gate: gate, TokenScale: g.scale,
						DUp: []backend.Cast{{Out: g.du}}, DGate: []backend.Cast{{Out: g.dg}},
					})
				}
				d := tr.run()
				of := d.values(a)
				if ofUp {
					of = d.values(up)
				}
				plain, smooth, scales := d.values(a), d.values(h), d.values(r)
				wantU, wantG := d.values(du), d.values(dg)
				for i := range rows {
					top := 0.0
					for _, v := range of[i*cols : (i+1)*cols] {
						top = max(top, math.Abs(v))
					}
					scale := scales[i]
					if exact {
						require.Equal(t, top, scale)
					} else {
						require.Equal(t, math.Exp2(math.Ceil(math.Log2(top))), scale)
					}
					for j := i * cols; j < (i+1)*cols; j++ {
						plain[j] /= scale
						wantU[j] /= scale
						wantG[j] /= scale
					}
				}
				near(t, plain, smooth, 2e-7, "h")
				near(t, wantU, d.values(du1), 2e-7, "du")
				near(t, wantG, d.values(dg1), 2e-7, "dg")
			}
		}
	}
}
