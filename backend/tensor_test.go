package backend_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// TestTwoElementsInAByte checks sizes and views of a format of four bits.
func TestTwoElementsInAByte(t *testing.T) {
	vars := backend.NewVars()
	x := vars.Tensor(backend.Stash, "x", fp8.E2M1, 3, 8)
	require.NoError(t, vars.Err())
	require.Equal(t, int64(12), x.Bytes())
	x.Scale = vars.Tensor(backend.Stash, "x.scale_inv", fp8.F32, 1)
	y, out := vars.Tensor(backend.Stash, "y", fp8.E2M1, 4, 2), vars.Tensor(backend.Stash, "out", fp8.F32, 3, 2)
	y.Scale = x.Scale
	p := vars.Program("views")
	p.Add(&backend.MatMul{A: x.Columns("even", 2, 4), B: y, Out: out})
	require.NoError(t, p.Err())
	p.Add(&backend.MatMul{A: x.Columns("odd", 1, 4), B: y, Out: out})
	require.ErrorContains(t, p.Err(), "tensor odd is odd:e2m1[3, 4], of which a byte holds two elements: columns, LD and Offset must be even")
	vars.Tensor(backend.Stash, "z", fp8.E2M1, 2, 3)
	require.ErrorContains(t, vars.Err(), "columns, LD and Offset must be even")
}

// Only the optimizer reads an expanded tensor: other ops would take its scales for scale_inv.
func TestExpandedTensorsAreRefused(t *testing.T) {
	vars := backend.NewVars()
	x := vars.Tensor(backend.State, "m1", fp8.E4M3, 4, 128)
	x.Block, x.Expand = backend.ScaleBlock{Rows: 1, Cols: 128}, true
	x.Scale = vars.Tensor(backend.State, "m1.expansion", fp8.F32, 4, 1, fp8.ExpansionElems)
	require.Equal(t, 12, x.ScaleElems())
	p := vars.Program("p")
	p.Add(&backend.Amax{X: x, Out: vars.Tensor(backend.Output, "amax", fp8.F32, 1)})
	require.ErrorContains(t, p.Err(), "X: m1:e4m3[4, 128] is expanded: only AdamW and UpdateStats take such a tensor")
}
