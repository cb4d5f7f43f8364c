package emu

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/emu/attention"
	"octet/backend/emu/gemm"
	"octet/fp8"
)

// backward computes the gradient of Σ out·do in float64.
func (c attentionCase) backward(q, k, v, do []float64) (dq, dk, dv []float64) {
	heads := c.kv * c.perKV
	dq, dk, dv = make([]float64, len(q)), make([]float64, len(k)), make([]float64, len(v))
	for seq := range c.batch {
		for head := range heads {
			for i := range c.queries {
				p, _ := c.probabilities(q, k, seq, head, i)
				row := func(x []float64) []float64 { return x[((seq*c.queries+i)*heads+head)*c.dim:][:c.dim] }
				key := func(x []float64, j int) []float64 {
					return x[((seq*c.keys+j)*c.kv+head/c.perKV)*c.dim:][:c.dim]
				}
				dp, mean := make([]float64, len(p)), 0.0
				for j, w := range p {
					for d, g := range row(do) {
						key(dv, j)[d] += w * g
						dp[j] += g * key(v, j)[d]
					}
					mean += w * dp[j]
				}
				for j, w := range p {
					ds := w * (dp[j] - mean) / math.Sqrt(float64(c.dim))
					for d := range c.dim {
						row(dq)[d] += ds * key(k, j)[d]
						key(dk, j)[d] += ds * row(q)[d]
					}
				}
			}
		}
	}
	return dq, dk, dv
}

func TestAttentionGrad(t *testing.T) {
	for _, c := range attentionCases {
		t.Run(c.String(), func(t *testing.T) { testAttentionGrad(t, c, fp8.F32, "", 3e-6) })
		if c.small() {
			t.Run("amx "+c.String(), func(t *testing.T) { testAttentionGrad(t, c, fp8.BF16, modelAMX, 5e-3) })
		}
	}
}

func testAttentionGrad(t *testing.T, c attentionCase, dtype fp8.DType, model string, tolerance float64) {
	tr := newTrial(t)
	tr.model = model
	q, k, v := attentionData(tr, c, dtype)
	do := tr.tensor("do", dtype, tr.noise(q.Elems()), q.Shape...)
	out := tr.tensor("out", fp8.F32, nil, q.Shape...)
	lse := tr.tensor("lse", fp8.F32, nil, c.batch*c.kv*c.perKV, c.queries)
	dq := tr.tensor("dq", fp8.F32, nil, q.Shape...)
	dk, dv := tr.tensor("dk", fp8.F32, nil, k.Shape...), tr.tensor("dv", fp8.F32, nil, k.Shape...)
	start := c.starts(tr)
	op := &backend.AttentionGrad{
		DOut: do, Q: q, K: k, V: v, O: out, LSE: lse, Start: start,
		DQ: []backend.Cast{{Out: dq}}, DK: []backend.Cast{{Out: dk}}, DV: []backend.Cast{{Out: dv}},
		Batch: c.batch, HeadDim: c.dim,
	}
	tr.program.Add(&backend.Attention{Q: q, K: k, V: v, Out: []backend.Cast{{Out: out}}, LSE: lse, Start: start, Batch: c.batch, HeadDim: c.dim})
	tr.program.Add(op)
	d := tr.run()

	wantQ, wantK, wantV := c.backward(d.values(q), d.values(k), d.values(v), d.values(do))
	check := func(what string) {
		if c.keys > 1 && len(c.documents) < c.keys { // the softmax of one score is constant
			near(t, wantQ, d.values(dq), tolerance, what+": dq")
			near(t, wantK, d.values(dk), tolerance, what+": dk")
		}
		near(t, wantV, d.values(dv), tolerance, what+": dv")
	}
	check("default kernel")
	if model != "" {
		return
	}
	for _, kernel := range gemm.Kernels() {
		var whole [3][]float64
		for _, split := range []bool{false, true} {
			for _, x := range []*backend.Tensor{dq, dk, dv} {
				require.NoError(t, d.Write(x, make([]byte, x.Bytes())))
			}
			b := &binder{device: d}
			attention.NewGrad(d.pool, attention.FP32(kernel), b.attentionGradOperands(op), split)()
			what := fmt.Sprintf("%s, split %v", kernel.Name, split)
			check(what)
			got := [3][]float64{d.values(dq), d.values(dk), d.values(dv)}
			if !split {
				whole = got
			}
			require.Equal(t, whole, got, what)
		}
	}
}
