package emu

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// BenchmarkAttention reports the GFLOP/s of the matrix products. Causality halves their
// FLOPs.
func BenchmarkAttention(b *testing.B) {
	for _, c := range []attentionCase{
		{4, 256, 256, 6, 1, 64, 0, nil},
		{1, 2048, 2048, 2, 4, 64, 0, nil},
		{1, 1, 1024, 6, 1, 64, 1023, nil},
	} {
		for _, threads := range []int{1, 2} {
			vars := backend.NewVars()
			p := vars.Program("bench")
			tensor := func(name string, rows, cols int) *backend.Tensor {
				return vars.Tensor(backend.Stash, name, fp8.BF16, rows, cols)
			}
			q := tensor("q", c.batch*c.queries, c.kv*c.perKV*c.dim)
			k, v := tensor("k", c.batch*c.keys, c.kv*c.dim), tensor("v", c.batch*c.keys, c.kv*c.dim)
			out, dq := tensor("out", q.Rows(), q.Cols()), tensor("dq", q.Rows(), q.Cols())
			dk, dv := tensor("dk", k.Rows(), k.Cols()), tensor("dv", k.Rows(), k.Cols())
			lse := vars.Tensor(backend.Stash, "lse", fp8.F32, c.batch*c.kv*c.perKV, c.queries)
			control := vars.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)
			forward := &backend.Attention{Q: q, K: k, V: v, Control: control, Out: []backend.Cast{{Out: out}}, LSE: lse, Batch: c.batch, HeadDim: c.dim}
			p.Add(forward)
			dev, err := Open("", backend.Options{Threads: threads})
			require.NoError(b, err)
			require.NoError(b, p.Err())
			_, err = dev.Load(p)
			require.NoError(b, err)
			for _, x := range []*backend.Tensor{q, k, v} {
				raw := make([]byte, x.Bytes())
				for i := range raw {
					raw[i] = byte(i*7 + i>>8)
					if i%2 == 1 {
						raw[i] = 0x3e + byte(i>>1%2)<<7
					}
				}
				require.NoError(b, dev.Write(x, raw))
			}
			require.NoError(b, dev.Write(control, append(backend.Control{Position: c.position}.AppendTo(nil), make([]byte, 64)...)[:64]))
			d := dev.(*device)
			run := func(what string, flops int64, f func()) {
				b.Run(fmt.Sprintf("%s/%v/%d", what, c, threads), func(b *testing.B) {
					for b.Loop() {
						f()
					}
					b.ReportMetric(float64(flops)/1e9*float64(b.N)/b.Elapsed().Seconds(), "GFLOP/s")
				})
			}
			bind := &binder{device: d}
			cost := int64(4 * q.Elems() * c.keys)
			if c.queries > 1 {
				cost /= 2
			}
			run("forward", cost, bind.attention(forward))
			if c.queries == c.keys {
				run("backward", cost*5/2, bind.attentionGrad(&backend.AttentionGrad{
					DOut: q, Q: q, K: k, V: v, O: out, LSE: lse,
					DQ: []backend.Cast{{Out: dq}}, DK: []backend.Cast{{Out: dk}}, DV: []backend.Cast{{Out: dv}},
					Batch: c.batch, HeadDim: c.dim,
				}))
			}
			require.NoError(b, d.Close())
		}
	}
}
