package backend_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// tower returns the forward and backward of a stack of layers. Each layer has two
// intermediates that its backward reads.
func tower(layers int, rounding fp8.Rounding) *backend.Program {
	vars := backend.NewVars()
	control := vars.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)
	x, dx := vars.Tensor(backend.Input, "x", fp8.F32, 8, 16), vars.Tensor(backend.Output, "dx", fp8.F32, 8, 16)
	p := vars.Program("tower")
	type saved struct{ a, b *backend.Tensor }
	var stack []saved
	for i := range layers {
		q := p.Scope(fmt.Sprintf("layers.%d", i))
		a, b, y := q.Temp("a", fp8.BF16, 16, 16), q.Temp("b", fp8.F32, 8, 16), q.Temp("y", fp8.BF16, 8, 16)
		q.Add(&backend.Activation{X: x, Out: to(a.RowRange(0, 8))})
		q.Add(&backend.Activation{X: x, Out: []backend.Cast{{Out: a.RowRange(8, 8), Rounding: rounding, Control: control}}, Kind: backend.ReLU})
		q.Add(&backend.Add{A: a.RowRange(0, 8), B: a.RowRange(8, 8), Out: to(b)})
		q.Add(&backend.Add{A: b, B: x, Out: to(y)})
		stack, x = append(stack, saved{a, b}), y
	}
	grad := p.Temp("head", fp8.F32, 8, 16)
	p.Add(&backend.Activation{X: x, Out: to(grad)})
	for i := layers - 1; i >= 0; i-- {
		q := p.Scope(fmt.Sprintf("layers.%d", i)).Phase(backend.Backward)
		s, d, out := stack[i], q.Temp("db", fp8.F32, 8, 16), dx
		if i > 0 {
			out = q.Temp("dx", fp8.F32, 8, 16)
		}
		q.Add(&backend.ActivationGrad{DOut: grad, X: s.b, DX: to(d)})
		q.Add(&backend.SwiGLUGrad{DOut: d, Up: s.a.RowRange(8, 8), Gate: s.a.RowRange(0, 8), DUp: to(out), DGate: to(q.Temp("unused", fp8.F32, 8, 16))})
		grad = out
	}
	return p
}

func TestRecomputeGivesTheSameBitsInLessMemory(t *testing.T) {
	p := tower(8, fp8.Nearest)
	require.NoError(t, p.Err())
	q, err := backend.RecomputeForward(p, func(n *backend.Node) string { return n.Scope })
	require.NoError(t, err)

	var results [][]byte
	for _, program := range []*backend.Program{p, q} {
		b, run := execute(t, program)
		x, dx := program.Vars().Lookup("x"), program.Vars().Lookup("dx")
		values := make([]float64, x.Elems())
		for i := range values {
			values[i] = float64(i%13) - 6.5
		}
		require.NoError(t, b.SetValues(x, values))
		require.NoError(t, run.Run(t.Context()))
		raw := make([]byte, dx.Bytes())
		require.NoError(t, b.Read(dx, raw))
		results = append(results, raw)
	}
	require.Equal(t, results[0], results[1])

	before, after := backend.MakePlan(64, backend.PerOp, p), backend.MakePlan(64, backend.PerOp, q)
	require.Less(t, 2*after.Bytes, before.Bytes+before.Bytes/2)
	recomputed := 0
	for _, n := range q.Nodes() {
		if n.Phase == backend.Recompute {
			recomputed++
			require.NotContains(t, n.String(), ".y#again", "the next layer's input is kept")
		}
		if n.Phase == backend.Backward {
			for _, o := range n.Operands() {
				if o.Field == "X" || o.Field == "Up" {
					require.True(t, strings.HasSuffix(o.Tensor.Root().Name, "#again"), "%s", n)
				}
			}
		}
	}
	require.Equal(t, 8*3, recomputed)
}

func TestRecomputeRefusesRandomBits(t *testing.T) {
	_, err := backend.RecomputeForward(tower(2, fp8.Stochastic), func(n *backend.Node) string { return n.Scope })
	require.ErrorContains(t, err, "layers.1: activation: a stochastic cast in a recomputed forward would draw other random bits")
}

func TestRecomputeNothing(t *testing.T) {
	p := tower(2, fp8.Nearest)
	q, err := backend.RecomputeForward(p, func(*backend.Node) string { return "" })
	require.NoError(t, err)
	require.Equal(t, dump(t, p), dump(t, q))
}
