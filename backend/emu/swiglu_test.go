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
			require.Equal(t, exact, d.values(top), "the maxima are those of the products that SwiGLU casts")
		}
	}
}
