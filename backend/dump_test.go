package backend_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// tiny returns a program with everything that a dump shows: scopes, phases, queues, all
// kinds of access, views, scales and their blocks, casts, settings, lists.
func tiny() *backend.Program {
	vars := backend.NewVars()
	one := vars.Tensor(backend.Stash, "one", fp8.F32, 1)
	weight := vars.Tensor(backend.Stash, "w.codes", fp8.E4M3, 8, 4)
	weight.Scale, weight.Block = vars.Tensor(backend.Stash, "w.scale_inv", fp8.F32, 8), backend.PerRow
	grad := vars.Tensor(backend.Stash, "w.grad", fp8.F32, 8, 4)
	control := vars.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)
	x := vars.Tensor(backend.Input, "x", fp8.BF16, 2, 4)
	amax := vars.Tensor(backend.Stash, "amaxes", fp8.F32, 5)

	p := vars.Program("tiny")
	mlp := p.Scope("layers.0").Scope("mlp").Block("layer")
	codes, out := mlp.Temp("x.codes", fp8.E4M3, 2, 4), mlp.Temp("y", fp8.BF16, 2, 16)
	transposed := mlp.Temp("x.codes.t", fp8.E5M2, 4, 2)
	codes.Scale, transposed.Scale = one, one
	mlp.Add(&backend.Quantize{X: x, Out: []backend.Cast{
		{Out: codes, Scale: one, Amax: amax.Slice("mlp.amax", 2, 1)},
		{Out: transposed, Control: control, Rounding: fp8.Stochastic, Tokens: true, Transpose: true},
	}})
	mlp.Add(&backend.MatMul{A: codes, B: weight, TransB: true, Out: out.Columns("half", 8, 8), Accum: backend.Fast})
	mlp.Phase(backend.Backward).Add(&backend.MatMul{A: out.Columns("half", 8, 8), TransA: true, B: x, Out: grad, Accumulate: true})
	p.Phase(backend.Comm).On(backend.CommQueue).Add(&backend.AllReduce{X: grad.Slice("flat", 0, 32)})
	p.Phase(backend.Update).Add(&backend.SumSquares{X: []*backend.Tensor{grad, grad.RowRange(1, 2)}, Out: one})
	return p
}

func dump(t *testing.T, p *backend.Program) string {
	require.NoError(t, p.Err())
	var b strings.Builder
	require.NoError(t, p.Dump(&b))
	return b.String()
}

func TestGoldenDump(t *testing.T) {
	got := dump(t, tiny())
	const golden = "testdata/tiny.dump"
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, strings.ReplaceAll(string(want), "\r\n", "\n"), got)
}

// one returns a program of one op that mutate may change.
func one(mutate func(o *backend.MatMul, m *maker)) *backend.Program {
	m := &maker{vars: backend.NewVars()}
	p := m.vars.Program("p")
	op := &backend.MatMul{A: m.b(4, 4), B: m.b(4, 4), Out: m.f(4, 4)}
	if mutate != nil {
		mutate(op, m)
	}
	p.Add(op)
	return p
}

func TestHashFollowsTheProgram(t *testing.T) {
	require.Equal(t, tiny().Hash(), tiny().Hash())
	require.Len(t, tiny().Hash(), 64)
	seen := map[string]bool{one(nil).Hash(): true}
	for _, mutate := range []func(o *backend.MatMul, m *maker){
		func(o *backend.MatMul, m *maker) { o.TransA = true },
		func(o *backend.MatMul, m *maker) { o.Accumulate = true },
		func(o *backend.MatMul, m *maker) { o.Accum = backend.Fast },
		func(o *backend.MatMul, m *maker) { o.A, o.B = o.B, o.A },
		func(o *backend.MatMul, m *maker) { o.Out = m.b(4, 4) },
		func(o *backend.MatMul, m *maker) { o.RowScale = m.f(4) },
		func(o *backend.MatMul, m *maker) { o.ColScale = m.f(4) },
		func(o *backend.MatMul, m *maker) { o.A = m.b(9, 4).RowRange(3, 4) },
		func(o *backend.MatMul, m *maker) { o.A = m.b(9, 4).RowRange(4, 4) },
		func(o *backend.MatMul, m *maker) { o.A = m.b(9, 7).Columns("c", 0, 4).RowRange(3, 4) },
	} {
		p := one(mutate)
		require.NoError(t, p.Err())
		require.False(t, seen[p.Hash()], "%s", p.Nodes()[0])
		seen[p.Hash()] = true
	}
}

// layer adds one block over tensors of its own.
func layer(m *maker, p *backend.Program, name string, columns int) {
	q := p.Scope(name).Block(name)
	x, y := q.Temp("x", fp8.F32, 4, 8), q.Temp("y", fp8.F32, 4, 4)
	q.Add(&backend.Fill{Out: x, Value: 1})
	q.Add(&backend.Add{A: x.Columns("left", 0, 4), B: m.f(4, columns).Columns("right", 0, 4), Out: to(y)})
	q.Add(&backend.Sum{X: y.Slice("flat", 0, 16), Out: m.f(1)})
	q.Add(&backend.Quantize{X: y, Out: []backend.Cast{{Out: q.Temp("z", fp8.BF16, 4, 4), Control: m.control(), Rounding: fp8.Stochastic, Stream: y.Name}}})
}

func TestBlocks(t *testing.T) {
	m := &maker{vars: backend.NewVars()}
	p := m.vars.Program("p")
	layer(m, p, "layers.0", 6)
	p.Add(&backend.Fill{Out: m.f(1)})
	layer(m, p, "layers.1", 6)
	layer(m, p, "layers.2", 7) // only a stride differs
	same := p.Scope("other").Block("layers.3")
	x := same.Temp("x", fp8.F32, 4, 8)
	same.Add(&backend.Fill{Out: x, Value: 1})
	y := same.Temp("y", fp8.F32, 4, 4)
	same.Add(&backend.Add{A: x.Columns("left", 0, 4), B: x.Columns("right", 0, 4), Out: to(y)})
	same.Add(&backend.Sum{X: y.Slice("flat", 0, 16), Out: m.f(1)})
	same.Add(&backend.Quantize{X: y, Out: []backend.Cast{{Out: same.Temp("z", fp8.BF16, 4, 4), Control: m.control(), Rounding: fp8.Stochastic, Stream: y.Name}}})
	require.NoError(t, p.Err())

	units := p.Blocks()
	require.Len(t, units, 4)
	for i, u := range units {
		require.Equal(t, fmt.Sprintf("layers.%d", i), u.Name)
		for _, n := range p.Nodes()[u.First : u.End+1] {
			require.Equal(t, u.Name, n.Block)
		}
	}
	require.Equal(t, units[0].Hash, units[1].Hash)
	require.NotEqual(t, units[0].Hash, units[2].Hash)
	require.NotEqual(t, units[0].Hash, units[3].Hash)
}

// A unit compiled for a scale that is known to be 1 is wrong for other scales.
func TestBlocksOfKnownValues(t *testing.T) {
	m := &maker{vars: backend.NewVars()}
	p := m.vars.Program("p")
	for i, value := range []float32{1, 1, 0} {
		x := m.vars.Tensor(backend.Input, fmt.Sprint("x", i), fp8.F32, 1)
		x.Value = value
		layer := p.Block(fmt.Sprint("layers.", i))
		layer.Add(&backend.Sum{X: x, Out: layer.Temp(fmt.Sprint("sum", i), fp8.F32, 1)})
	}
	require.NoError(t, p.Err())
	units := p.Blocks()
	require.Len(t, units, 3)
	require.Equal(t, units[0].Hash, units[1].Hash)
	require.NotEqual(t, units[0].Hash, units[2].Hash)
}

// Different ops may write different columns of one temp.
func TestOpsWriteDisjointColumns(t *testing.T) {
	m := &maker{vars: backend.NewVars()}
	p := m.vars.Program("p")
	x := p.Temp("x", fp8.F32, 4, 8)
	p.Add(&backend.Fill{Out: x.Columns("left", 0, 4), Value: 1})
	p.Add(&backend.Fill{Out: x.Columns("right", 4, 4), Value: 1})
	require.NoError(t, p.Err())
	p.Add(&backend.Fill{Out: x.Columns("middle", 3, 2), Value: 1})
	require.ErrorContains(t, p.Err(), "written twice")
}
