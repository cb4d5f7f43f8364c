package backend_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

func TestFirstErrorSticks(t *testing.T) {
	p := backend.NewVars().Program("p")
	x := p.Temp("x", fp8.F32, 4)
	p.Add(&backend.Fill{Out: x, Value: 1})
	p.Scope("a").Add(&backend.Sum{X: x})
	first := p.Err()
	require.EqualError(t, first, "a: sum: operand Out is missing")
	p.Scope("b").Add(&backend.Amax{})
	p.Add(&backend.Fill{Out: p.Temp("y", fp8.F32, 4)})
	require.Equal(t, first, p.Err())
	require.Len(t, p.Nodes(), 1, "nothing is added after an error")
}

func TestErrorsOfVarsReachEveryProgram(t *testing.T) {
	vars := backend.NewVars()
	p := vars.Program("p")
	vars.Tensor(backend.Param, "w", fp8.F32, 2)
	require.NoError(t, p.Err())
	vars.Tensor(backend.Param, "w", fp8.F32, 2)
	require.EqualError(t, p.Err(), "tensor w is declared twice")
	require.Equal(t, vars.Err(), vars.Program("q").Err())

	vars = backend.NewVars()
	vars.Tensor(backend.Temp, "x", fp8.F32, 1)
	require.ErrorContains(t, vars.Err(), "a temp belongs to a program")
}

func TestAccessRules(t *testing.T) {
	vars := backend.NewVars()
	input, stash := vars.Tensor(backend.Input, "input", fp8.F32, 4), vars.Tensor(backend.Stash, "stash", fp8.F32, 4)
	other := backend.NewVars()
	foreign := other.Tensor(backend.Stash, "stash", fp8.F32, 4)
	alien := other.Program("other").Temp("x", fp8.F32, 4)

	for want, build := range map[string]func(p *backend.Program){
		"Out: temp x:fp32[4] is written twice; give the second result a name of its own": func(p *backend.Program) {
			x := p.Temp("x", fp8.F32, 4)
			p.Add(&backend.Fill{Out: x})
			p.Add(&backend.Fill{Out: x})
		},
		"Out: temp x[1:3]:fp32[2, 4] is written twice": func(p *backend.Program) {
			x := p.Temp("x", fp8.F32, 4, 4)
			p.Add(&backend.Fill{Out: x.RowRange(2, 2)})
			p.Add(&backend.Fill{Out: x.RowRange(1, 2)})
		},
		"Out[1].Out: temp x:fp32[4] is written twice": func(p *backend.Program) {
			x := p.Temp("x", fp8.F32, 4)
			p.Add(&backend.Quantize{X: stash, Out: []backend.Cast{{Out: x}, {Out: x}}})
		},
		"A: temp x:fp32[4] is read before an op writes it": func(p *backend.Program) {
			p.Add(&backend.Add{A: p.Temp("x", fp8.F32, 4), B: stash, Out: to(stash)})
		},
		"Out: temp x:fp32[1] is read before an op writes it": func(p *backend.Program) {
			p.Add(&backend.Sum{X: stash, Out: p.Temp("x", fp8.F32, 1), Accumulate: true})
		},
		"A.Scale: temp s:fp32[1] is read before an op writes it": func(p *backend.Program) {
			x := *stash
			x.Base, x.Scale = stash, p.Temp("s", fp8.F32, 1)
			p.Add(&backend.Add{A: &x, B: stash, Out: to(stash)})
		},
		"Out: input:fp32[4] is an input: only the host writes it": func(p *backend.Program) { p.Add(&backend.Fill{Out: input}) },
		"Out: tensor stash is not declared in this program":       func(p *backend.Program) { p.Add(&backend.Fill{Out: foreign}) },
		"Out: tensor x is not declared in this program":           func(p *backend.Program) { p.Add(&backend.Fill{Out: alien}) },
		"program p: tensor a.x is declared twice": func(p *backend.Program) {
			p.Scope("a").Temp("x", fp8.F32, 1)
			p.Temp("a.x", fp8.F32, 1)
		},
		"program p: tensor stash is declared twice": func(p *backend.Program) { p.Temp("stash", fp8.F32, 1) },
	} {
		p := vars.Program("p")
		build(p)
		require.ErrorContains(t, p.Err(), want)
	}

	// Allowed: one op per half, accumulation, any writes to persistent tensors.
	p := vars.Program("p")
	x := p.Temp("x", fp8.F32, 4, 4)
	sum := p.Temp("sum", fp8.F32, 1)
	p.Add(&backend.Fill{Out: x.RowRange(0, 2)})
	p.Add(&backend.Fill{Out: x.RowRange(2, 2)})
	p.Add(&backend.Sum{X: x.Slice("x.flat", 0, 16), Out: sum})
	p.Add(&backend.Sum{X: stash, Out: sum, Accumulate: true})
	p.Add(&backend.Fill{Out: stash})
	p.Add(&backend.Fill{Out: stash})
	require.NoError(t, p.Err())
}

func TestViews(t *testing.T) {
	vars := backend.NewVars()
	x := vars.Tensor(backend.Stash, "x", fp8.BF16, 2, 3, 8) // a matrix of 6 rows
	x.Scale = vars.Tensor(backend.Stash, "s", fp8.F32, 1)
	rows := x.RowRange(2, 3)
	require.Equal(t, "x[2:5]:bf16[3, 8]", rows.String())
	require.Same(t, x, rows.Root())
	require.Same(t, x.Scale, rows.Scale)
	require.True(t, rows.Contiguous())
	part := rows.RowRange(1, 2).Columns("part", 5, 3)
	require.Same(t, x, part.Base, "a view of a view is a view of the root")
	require.Equal(t, 3*8+5, part.Offset)
	require.False(t, part.Contiguous())
	require.EqualValues(t, 2*3*2, part.Bytes())

	for name, view := range map[string]*backend.Tensor{
		"past the end":      x.RowRange(4, 3),
		"before the start":  x.RowRange(-1, 2),
		"no rows":           x.RowRange(2, 0),
		"too wide":          x.Columns("wide", 4, 8),
		"slice too long":    x.Slice("slice", 40, 9),
		"stride below cols": {Name: "bad", DType: fp8.BF16, Shape: []int{2, 8}, Base: x, LD: 4, Class: backend.Stash},
		"stride overflows":  {Name: "bad", DType: fp8.BF16, Shape: []int{1 << 40, 8}, Base: x, LD: math.MaxInt / 2, Class: backend.Stash},
	} {
		p := vars.Program("p")
		p.Add(&backend.Fill{Out: view})
		require.Error(t, p.Err(), name)
	}
}

func TestShapesThatOverflow(t *testing.T) {
	for _, shape := range [][]int{{}, {0}, {3, -1}, {1 << 25, 1 << 25}, {math.MaxInt, math.MaxInt}, {1 << 32, 1 << 32, 4}} {
		vars := backend.NewVars()
		vars.Tensor(backend.Stash, "x", fp8.F32, shape...)
		require.ErrorContains(t, vars.Err(), "tensor x has ")
		p := backend.NewVars().Program("p")
		p.Temp("x", fp8.F32, shape...)
		require.ErrorContains(t, p.Err(), "tensor x has ")
	}
	vars := backend.NewVars()
	vars.Tensor(backend.Stash, "x", fp8.F32, 1<<24, 1<<24)
	require.NoError(t, vars.Err())
	vars.Tensor(backend.Stash, "y", fp8.Invalid, 1)
	require.ErrorContains(t, vars.Err(), "tensor y has no format")
}

// Lowering relies on known values, so no op may write them.
func TestOnlyInputsHaveKnownValues(t *testing.T) {
	for class, want := range map[backend.Class]string{backend.Input: "", backend.State: "tensor one has the known value 1: only an input can have one"} {
		vars := backend.NewVars()
		one := vars.Tensor(class, "one", fp8.F32, 1)
		one.Value = 1
		p := vars.Program("p")
		p.Add(&backend.Sum{X: one, Out: p.Temp("sum", fp8.F32, 1)})
		if want == "" {
			require.NoError(t, p.Err())
		} else {
			require.ErrorContains(t, p.Err(), want)
		}
	}
}

func TestHandlesMarkNodes(t *testing.T) {
	p := backend.NewVars().Program("p")
	q := p.Scope("layers").Scope("3").Block("layer").Phase(backend.Backward).On(backend.CommQueue)
	q.Add(&backend.Fill{Out: q.Temp("x", fp8.F32, 1)})
	p.Add(&backend.Fill{Out: p.Temp("x", fp8.F32, 1)})
	n := p.Nodes()[0]
	require.Equal(t, "layers.3: fill", n.Path())
	require.Equal(t, "layer", n.Block)
	require.Equal(t, backend.Backward, n.Phase)
	require.Equal(t, backend.CommQueue, n.Queue)
	require.Equal(t, "fill", p.Nodes()[1].Path())
	require.Equal(t, "layers.3.x", p.Temps()[0].Name)
}

func TestCost(t *testing.T) {
	m := &maker{vars: backend.NewVars()}
	p := m.vars.Program("p")
	p.Add(&backend.MatMul{A: m.b(3, 5), B: m.b(7, 5), TransB: true, Out: m.f(3, 7), Accumulate: true})
	require.NoError(t, p.Err())
	require.Equal(t, backend.Cost{FLOPs: 2 * 3 * 5 * 7, Bytes: 2*15 + 2*35 + 2*4*21}, p.Nodes()[0].Cost())
}

// Causal attention computes half of each GEMM: on average a query attends to half of
// the keys.
func TestFLOPsOfAttention(t *testing.T) {
	const batch, heads, queries, keys, headDim = 2, 3, 5, 7, 4
	const perKey = 2 * batch * heads * queries * headDim // FLOPs of all queries by one key, or by one row of V
	m := &maker{vars: backend.NewVars()}
	p := m.vars.Program("p")
	x := func(n, heads int) *backend.Tensor { return m.f(batch*n, heads*headDim) }
	q := x(queries, heads)
	p.Add(&backend.Attention{Q: q, K: x(keys, 1), V: x(keys, 1), Out: to(x(queries, heads)), Batch: batch, HeadDim: headDim})
	p.Add(&backend.AttentionGrad{
		DOut: x(queries, heads), Q: q, K: x(queries, 1), V: x(queries, 1), O: x(queries, heads), LSE: m.f(batch * heads * queries),
		DQ: to(x(queries, heads)), DK: to(x(queries, 1)), DV: to(x(queries, 1)), Batch: batch, HeadDim: headDim,
	})
	require.NoError(t, p.Err())
	require.Equal(t, int64(2*perKey*keys/2), p.Nodes()[0].Cost().FLOPs, "QKᵀ and PV")
	require.Equal(t, int64(5*perKey*queries/2), p.Nodes()[1].Cost().FLOPs, "QKᵀ again, dV, dP, dQ and dK")
}
