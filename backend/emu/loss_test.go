package emu

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

func TestCrossEntropy(t *testing.T) {
	const tokens, cols, invTokens = 40, lossPiece + 500, 0.25
	for _, dtype := range []fp8.DType{fp8.F32, fp8.BF16} {
		for _, valid := range []int{1, cols - 100, cols} {
			tr := newTrial(t)
			values := tr.noise(tokens * cols)
			for i := range cols {
				values[i] *= 100 // exp overflows unless the maximum is subtracted
			}
			ids := make([]float32, tokens)
			for i := range ids {
				ids[i] = float32(i * 63 % valid)
			}
			ids[3] = -1
			logits := tr.tensor("logits", dtype, values, tokens, cols)
			targets := tr.tensor("targets", fp8.I32, ids, tokens)
			loss := tr.tensor("loss", fp8.F32, nil, tokens)
			grad := tr.tensor("grad", fp8.F32, []float32{9}, tokens, cols)
			only := tr.tensor("only", fp8.F32, nil, tokens)
			tr.program.Add(&backend.CrossEntropy{
				Logits: logits, Targets: targets, Control: tr.control(backend.Control{InvTokens: invTokens}),
				Loss: loss, DLogits: grad, Valid: valid,
			})
			tr.program.Add(&backend.CrossEntropy{Logits: logits, Targets: targets, Loss: only, Valid: valid})
			d := tr.run()

			x := d.values(logits)
			wantLoss, wantGrad := make([]float64, tokens), make([]float64, tokens*cols)
			for r := range tokens {
				row, target := x[r*cols:][:valid], int(ids[r])
				if target < 0 {
					continue
				}
				top, sum := math.Inf(-1), 0.0
				for _, v := range row {
					top = max(top, v)
				}
				for _, v := range row {
					sum += math.Exp(v - top)
				}
				wantLoss[r] = top + math.Log(sum) - row[target]
				for c, v := range row {
					wantGrad[r*cols+c] = math.Exp(v-top) / sum * invTokens
				}
				wantGrad[r*cols+target] -= invTokens
			}
			near(t, wantLoss, d.values(loss), 1e-6, "loss")
			near(t, wantGrad, d.values(grad), 1e-6, "gradient")
			require.Equal(t, d.values(loss), d.values(only))
			for i, g := range d.values(grad) {
				if i%cols >= valid || i/cols == 3 {
					require.Zero(t, g)
				}
			}
		}
	}
}

func TestCrossEntropyOutsideVocabulary(t *testing.T) {
	tr := newTrial(t)
	logits := tr.tensor("logits", fp8.F32, []float32{1, 2}, 3, 8)
	targets := tr.tensor("targets", fp8.I32, []float32{5, 6, 1 << 30}, 3)
	loss := tr.tensor("loss", fp8.F32, nil, 3)
	grad := tr.tensor("grad", fp8.BF16, nil, 3, 8)
	tr.program.Add(&backend.CrossEntropy{Logits: logits, Targets: targets, Control: tr.control(backend.Control{}), Loss: loss, DLogits: grad, Valid: 6})
	d, run := tr.load(1)
	require.NoError(t, run.Run(t.Context()))
	l, g := d.values(loss), d.values(grad)
	for r := range 3 {
		require.Equal(t, r > 0, math.IsNaN(l[r]))
		require.Equal(t, r > 0, math.IsNaN(g[8*r]))
		require.Zero(t, g[8*r+7], "padding")
	}
}

func TestSum(t *testing.T) {
	for _, accumulate := range []bool{false, true} {
		tr := newTrial(t)
		// A float32 sum would lose the small values.
		values := append([]float32{1 << 24}, make([]float32, 1000)...)
		for i := range values[1:] {
			values[i+1] = 0.5
		}
		x, out := tr.tensor("x", fp8.F32, values, 1001), tr.tensor("out", fp8.F32, []float32{8}, 1)
		tr.program.Add(&backend.Sum{X: x, Out: out, Accumulate: accumulate})
		want := 1<<24 + 500.0
		if accumulate {
			want += 8
		}
		require.Equal(t, want, tr.run().values(out)[0])
	}
}
