package emu

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

func TestSwiGLU(t *testing.T) {
	for _, smooth := range []bool{false, true} {
		for _, shape := range oddShapes {
			rows, cols := shape[0], shape[1]
			tr := newTrial(t)
			up := tr.tensor("up", fp8.BF16, tr.noise(rows*cols), rows, cols)
			gate := tr.tensor("gate", fp8.F32, tr.noise(rows*cols), rows, cols)
			da := tr.tensor("da", fp8.BF16, tr.noise(rows*cols), rows, cols)
			h := tr.tensor("h", fp8.F32, nil, rows, cols)
			du, dg := tr.tensor("du", fp8.F32, nil, rows, cols), tr.tensor("dg", fp8.F32, nil, rows, cols)
			top := tr.tensor("max", fp8.F32, nil, cols)
			var invC *backend.Tensor
			if smooth {
				invC = tr.tensor("inv_c", fp8.F32, []float32{1, 0.5, 4}, cols)
			}
			tr.program.Add(&backend.SwiGLU{Up: up, Gate: gate, InvC: invC, Out: []backend.Cast{{Out: h}}})
			tr.program.Add(&backend.SwiGLUAmax{Up: up, Gate: gate, Out: top})
			tr.program.Add(&backend.SwiGLUGrad{
				DOut: da, Up: up, Gate: gate, InvC: invC,
				DUp: []backend.Cast{{Out: du}}, DGate: []backend.Cast{{Out: dg}},
			})
			d := tr.run()

			n := rows * cols
			wantH, wantU, wantG := make([]float64, n), make([]float64, n), make([]float64, n)
			us, gs, ds := d.values(up), d.values(gate), d.values(da)
			silu := func(x float64) float64 { return x / (1 + math.Exp(-x)) }
			inv := func(i int) float64 {
				if smooth {
					return []float64{1, 0.5, 4}[i%cols%3]
				}
				return 1
			}
			for i := range n {
				const step = 1e-5
				wantH[i] = us[i] * silu(gs[i]) * inv(i)
				wantU[i] = ds[i] * silu(gs[i]) * inv(i)
				wantG[i] = ds[i] * us[i] * inv(i) * (silu(gs[i]+step) - silu(gs[i]-step)) / (2 * step)
			}
			near(t, wantH, d.values(h), 3e-7, "h")
			near(t, wantU, d.values(du), 3e-7, "du")
			near(t, wantG, d.values(dg), 3e-7, "dg")

			exact := make([]float64, cols)
			for i, v := range d.values(h) {
				exact[i%cols] = max(exact[i%cols], math.Abs(v/inv(i)))
			}
			require.Equal(t, exact, d.values(top), "the maxima of the very products that are cast")
		}
	}
}

func TestSmoothScale(t *testing.T) {
	inf := float32(math.Inf(1))
	tiny := math.Nextafter32(4, 5)
	run := func(channel, weight []float32) (d *device, op *backend.SmoothScale) {
		tr := newTrial(t)
		n := len(weight)
		vector := func(name string, n int, values ...float32) *backend.Tensor {
			return tr.tensor(name, fp8.F32, values, n)
		}
		op = &backend.SmoothScale{
			ChannelMax: tr.tensor("channel", fp8.F32, channel, len(channel)/n, n),
			WeightMax:  vector("weight", n, weight...),
			Seen:       vector("seen", n, 2), Amax: vector("amax", 1, 1),
			C: vector("c", n), InvC: vector("inv_c", n),
			HScale: vector("h", 1), HScaleInv: vector("h_inv", 1),
			WScale: vector("w", 1), WScaleInv: vector("w_inv", 1),
			HLimit: 448, WLimit: 240,
		}
		tr.program.Add(op)
		return tr.run(), op
	}
	// Two rows of a window: only the larger counts. √(m/k) of 1, 2, a bit
	// more than 2, 1/8; a dead channel, a zero weight; both clamps.
	d, op := run(
		[]float32{1, 4, tiny, 1, 0, 5, 1e30, 1e-20, 1, 1, 1, 1, 0, 1, 1, 0},
		[]float32{1, 1, 1, 64, 3, 0, 1e-10, 1e20})
	require.Equal(t, []float64{1, 2, 4, 0.125, 1, 1, 1 << 30, 1.0 / (1 << 30)}, d.values(op.C))
	for i, c := range d.values(op.C) {
		require.Equal(t, 1/c, d.values(op.InvC)[i])
	}
	require.EqualValues(t, float32(1e30), d.values(op.Amax)[0])
	require.Equal(t, []float64{2, 4, float64(tiny), 2, 2, 5, float64(float32(1e30)), 2}, d.values(op.Seen))
	// Channel 6 has the largest h, 1e30/2^30 = 2^69.7, and 448 is 2^8.8;
	// channel 7 the largest w, 1e20/2^30 = 2^36.4, and 240 is 2^7.9.
	require.Equal(t, math.Ldexp(1, -61), d.values(op.HScale)[0])
	require.Equal(t, math.Ldexp(1, -29), d.values(op.WScale)[0])
	require.Equal(t, math.Ldexp(1, 61), d.values(op.HScaleInv)[0])
	require.Equal(t, math.Ldexp(1, 29), d.values(op.WScaleInv)[0])

	nan := float32(math.NaN())
	d, op = run([]float32{inf, 4}, []float32{1, 1})
	require.Equal(t, []float64{1, 2}, d.values(op.C))
	for _, bad := range []float32{0, inf, nan} {
		for _, other := range []float32{0, 1, inf, nan} {
			require.Zero(t, balancedExponent(bad, other))
			require.Zero(t, balancedExponent(other, bad))
		}
	}
	require.Equal(t, 1.0, d.values(op.HScale)[0], "an infinite maximum teaches no scale")
	require.Equal(t, 64.0, d.values(op.WScale)[0])
	require.True(t, math.IsInf(d.values(op.Amax)[0], 1))
}
