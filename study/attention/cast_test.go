package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/conformance"
	"octet/fp8"
	"octet/train"
)

// Attention and its gradient read one cast of each operand, in every program with tokens.
func TestCastAttention(t *testing.T) {
	spec, err := backend.SpecOf("emu")
	require.NoError(t, err)
	c := train.Default()
	c.Recipe = "bf16"
	j, err := train.NewJob(c, spec)
	require.NoError(t, err)
	require.NoError(t, castAttention(j, []string{"K", "V"}, fp8.E5M2))
	programs := []*backend.Program{j.Eval}
	for _, p := range j.Micro {
		programs = append(programs, p)
	}
	for _, p := range programs {
		require.NoError(t, p.Err())
		read, codes := map[*backend.Tensor]int{}, 0
		see := func(q, k, v *backend.Tensor) {
			require.False(t, strings.HasSuffix(q.Name, ".back"), q)
			read[k]++
			read[v]++
		}
		for _, n := range p.Nodes() {
			switch op := n.Op.(type) {
			case *backend.Attention:
				see(op.Q, op.K, op.V)
			case *backend.AttentionGrad:
				see(op.Q, op.K, op.V)
			case *decode:
				require.Equal(t, fp8.E5M2, op.X.DType)
				codes++
			}
		}
		require.Len(t, read, 2*c.Model.Layers)
		require.Equal(t, 2*c.Model.Layers, codes)
		for x, times := range read {
			require.True(t, strings.HasSuffix(x.Name, ".back"), x)
			require.Equal(t, fp8.BF16, x.DType)
			if p != j.Eval {
				require.Equal(t, 2, times, x)
			}
		}
	}
}

// decode is exact.
func TestDecode(t *testing.T) {
	driver, device, err := backend.Find("emu")
	require.NoError(t, err)
	for c := range conformance.Of("decode", 0, func(b *conformance.Bench) backend.Op {
		return &decode{X: b.Input("x", b.Rows, b.Cols), Out: b.Casts("out", b.Rows, b.Cols)}
	}) {
		require.NoError(t, c.Run(t.Context(), driver, device), c.Name)
	}
}
