package emu

import (
	"math"
	"testing"

	"octet/backend"
	"octet/fp8"
)

func TestRMSNorm(t *testing.T) {
	for _, shape := range oddShapes {
		rows, cols := shape[0], shape[1]
		tr := newTrial(t)
		x := tr.tensor("x", fp8.F32, tr.noise(rows*cols), rows, cols)
		gain := tr.tensor("gain", fp8.F32, tr.noise(cols), cols)
		inv := tr.tensor("inv_rms", fp8.F32, nil, rows)
		y := tr.tensor("y", fp8.F32, nil, rows, cols)
		tr.program.Add(&backend.RMSNorm{X: x, Gain: gain, Out: []backend.Cast{{Out: y}}, InvRMS: inv, Eps: 1e-5})
		d := tr.run()

		wantY, wantInv := make([]float64, rows*cols), make([]float64, rows)
		xs, gains := d.values(x), d.values(gain)
		for r := range rows {
			var sum float64
			for _, v := range xs[r*cols : (r+1)*cols] {
				sum += v * v
			}
			wantInv[r] = 1 / math.Sqrt(sum/float64(cols)+1e-5)
			for c := range cols {
				wantY[r*cols+c] = xs[r*cols+c] * wantInv[r] * gains[c]
			}
		}
		near(t, wantY, d.values(y), 2e-7, "y")
		near(t, wantInv, d.values(inv), 2e-7, "inv_rms")
	}
}

func TestRMSNormGrad(t *testing.T) {
	for _, bypass := range []bool{false, true} {
		for _, shape := range oddShapes {
			rows, cols := shape[0], shape[1]
			tr := newTrial(t)
			x := tr.tensor("x", fp8.BF16, tr.noise(rows*cols), rows, cols)
			dy := tr.tensor("dy", fp8.BF16, tr.noise(rows*cols), rows, cols)
			gain := tr.tensor("gain", fp8.F32, tr.noise(cols), cols)
			inv := tr.tensor("inv_rms", fp8.F32, []float32{1.5, 0.5}, rows)
			dx := tr.tensor("dx", fp8.F32, nil, rows, cols)
			dgain := tr.tensor("dgain", fp8.F32, []float32{3}, cols)
			op := &backend.RMSNormGrad{
				DOut: dy, X: x, Gain: gain, InvRMS: inv,
				DX: []backend.Cast{{Out: dx}}, DGain: dgain, Accumulate: bypass,
			}
			if bypass {
				op.Residual = tr.tensor("residual", fp8.BF16, tr.noise(rows*cols), rows, cols)
			}
			tr.program.Add(op)
			d := tr.run()

			xs, dys, gains, invs := d.values(x), d.values(dy), d.values(gain), d.values(inv)
			wantDX, wantGain := make([]float64, rows*cols), make([]float64, cols)
			for c := range cols {
				if bypass {
					wantGain[c] = 3
				}
			}
			for r := range rows {
				var mean float64
				for c := range cols {
					i := r*cols + c
					wantGain[c] += dys[i] * xs[i] * invs[r]
					mean += dys[i] * gains[c] * xs[i] * invs[r] / float64(cols)
				}
				for c := range cols {
					i := r*cols + c
					wantDX[i] = invs[r] * (dys[i]*gains[c] - xs[i]*invs[r]*mean)
				}
			}
			if bypass {
				for i, v := range d.values(op.Residual) {
					wantDX[i] += v
				}
			}
			if cols > 1 || bypass { // with one column and no bypass, dx cancels to 0
				near(t, wantDX, d.values(dx), 1e-6, "dx")
			}
			near(t, wantGain, d.values(dgain), 1e-6, "dgain")
		}
	}
}
