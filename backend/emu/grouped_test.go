package emu

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/emu/optimizer"
	"octet/fp8"
)

// A MatMul joins the ones before it unless it reads what one of them writes, writes what one of
// them reads, or both write the same elements.
func TestGrouped(t *testing.T) {
	vars := backend.NewVars()
	matrix := func(name string) *backend.Tensor { return vars.Tensor(backend.Output, name, fp8.F32, 16, 16) }
	a, b, c, amax := matrix("a"), matrix("b"), matrix("c"), vars.Tensor(backend.Output, "amax", fp8.F32, 2)
	flat := vars.Tensor(backend.Output, "grads", fp8.F32, 32, 16)
	w1, w2 := flat.RowRange(0, 16), flat.RowRange(16, 16)
	codes := vars.Tensor(backend.Output, "codes", fp8.E4M3, 32, 16)
	codes.Scale = vars.Tensor(backend.Output, "scale_inv", fp8.F32, 1)
	e1, e2 := codes.RowRange(0, 16), codes.RowRange(16, 16)
	matmul := func(x, y, out *backend.Tensor) *backend.MatMul { return &backend.MatMul{A: x, B: y, Out: out} }
	with := func(m *backend.MatMul, change func(*backend.MatMul)) *backend.MatMul { change(m); return m }
	accumulate := func(m *backend.MatMul) { m.Accumulate = true }
	amaxAt := func(i int) func(*backend.MatMul) {
		return func(m *backend.MatMul) { m.Amax = amax.Slice(fmt.Sprint("amax", i), i, 1) }
	}
	for _, test := range []struct {
		name  string
		ops   []backend.Op
		count int // of the nodes in the first group
	}{
		{"independent", []backend.Op{matmul(a, b, w1), matmul(b, a, w2), matmul(a, a, c)}, 3},
		{"writes what another reads", []backend.Op{matmul(a, b, w1), matmul(b, b, a)}, 1},
		{"reads what another writes", []backend.Op{matmul(a, b, w1), matmul(w1, b, c)}, 1},
		{"write the same", []backend.Op{matmul(a, b, w1), matmul(b, a, w1)}, 1},
		{"accumulate", []backend.Op{matmul(a, b, w1), matmul(a, b, w2), with(matmul(b, a, w1), accumulate)}, 2},
		{"own amaxes", []backend.Op{with(matmul(a, b, e1), amaxAt(0)), with(matmul(a, b, e2), amaxAt(1))}, 2},
		{"one amax", []backend.Op{with(matmul(a, b, e1), amaxAt(0)), with(matmul(a, b, e2), amaxAt(0))}, 1},
		{"another op between", []backend.Op{matmul(a, b, w1), &backend.Fill{Out: c}, matmul(a, b, w2)}, 1},
		{"another op first", []backend.Op{&backend.Fill{Out: c}, &backend.Fill{Out: w1}}, 1},
	} {
		p := vars.Program(test.name)
		for _, op := range test.ops {
			p.Add(op)
		}
		require.NoError(t, p.Err(), test.name)
		extent := grouped(p)
		for i := range p.Nodes() {
			first, end := extent(p.Nodes(), i)
			require.True(t, first <= i && i <= end, test.name)
			if i == 0 {
				require.Equal(t, []int{0, test.count}, []int{first, end + 1}, test.name)
			}
		}
	}
}

// Temps of a grouped GEMM share no bytes, though one op after the other they would: out 1 could take
// the place of copy 0. Observed runs, one op after the other, give the same bits.
func TestGroupedTemps(t *testing.T) {
	tr := newTrial(t)
	const n = 48
	x, sum := tr.tensor("x", fp8.F32, tr.noise(n*n), n, n), tr.tensor("sum", fp8.F32, nil, n, n)
	temp := func(name string) *backend.Tensor { return tr.program.Temp(name, fp8.F32, n, n) }
	var copies, outs []*backend.Tensor
	for i := range 3 {
		copies = append(copies, temp(fmt.Sprint("copy", i)))
		tr.program.Add(&backend.Quantize{X: x, Out: []backend.Cast{{Out: copies[i]}}})
	}
	for i, c := range copies {
		outs = append(outs, temp(fmt.Sprint("out", i)))
		tr.program.Add(&backend.MatMul{A: c, B: x, Out: outs[i]})
	}
	for i, y := range outs {
		tr.program.Add(&backend.MatMul{A: y, B: x, Out: sum, Accumulate: i > 0})
	}
	alone, together := backend.MakePlan(64, backend.PerOp, tr.program), backend.MakePlan(64, grouped(tr.program), tr.program)
	require.Equal(t, []int64{4 * 4 * n * n, 6 * 4 * n * n}, []int64{alone.Bytes, together.Bytes})

	ran := tr.run()
	d, x2 := tr.load(2)
	require.Len(t, x2.(*executable).launches, 3+1+3)
	require.NoError(t, x2.RunObserved(t.Context(), func(*backend.Node, backend.Memory) error { return nil }))
	require.Equal(t, ran.values(sum), d.values(sum))
}

// Programs that share nodes are grouped each by its own order: q computes c again before it is read a
// second time, which ends the group of p.
func TestGroupedSharedNodes(t *testing.T) {
	tr := newTrial(t)
	const n = 16
	x, s, o := tr.tensor("x", fp8.F32, tr.noise(n*n), n, n), tr.tensor("s", fp8.F32, nil, n, n), tr.tensor("o", fp8.F32, nil, n, n)
	c := tr.program.Temp("c", fp8.F32, n, n)
	tr.program.Add(&backend.Quantize{X: x, Out: []backend.Cast{{Out: c}}})
	tr.program.Add(&backend.MatMul{A: c, B: x, Out: s})
	tr.program.Phase(backend.Backward).Add(&backend.MatMul{A: c, B: x, TransA: true, Out: o})
	q, err := backend.RecomputeForward(tr.program, func(*backend.Node) string { return "segment" })
	require.NoError(t, err)
	d, run := tr.load(2)
	require.NoError(t, run.Run(t.Context()))
	want := [][]float64{d.values(s), d.values(o)}

	dev, err := Open("", backend.Options{Threads: 2})
	require.NoError(t, err)
	d = dev.(*device)
	defer func() { require.NoError(t, d.Close()) }()
	list, err := d.Load(q, tr.program)
	require.NoError(t, err)
	require.NoError(t, d.Write(x, tr.data[x]))
	require.Len(t, list[0].(*executable).launches, 4)
	require.Len(t, list[1].(*executable).launches, 2)
	for _, run := range list {
		for _, out := range []*backend.Tensor{s, o} {
			require.NoError(t, d.Write(out, make([]byte, out.Bytes())))
		}
		require.NoError(t, run.Run(t.Context()))
		require.Equal(t, want, [][]float64{d.values(s), d.values(o)})
	}
}

// A grouped GEMM marks the extents of all its outputs unknown.
func TestGroupedForgetsExtents(t *testing.T) {
	if !optimizer.SkipsBlocks() {
		t.Skip("this machine's AdamW uses no extents")
	}
	tr, op, norm := boundedTrial(t, fp8.Nearest, false)
	a := tr.tensor("a", fp8.F32, tr.noise(256), 16, 16)
	write := tr.vars.Program("write")
	for _, grad := range op.Grad[:2] {
		write.Add(&backend.MatMul{A: a, B: a, Out: grad.Slice("part", 0, 256).Regroup(16)})
	}
	dev, err := Open("", backend.Options{Threads: 1})
	require.NoError(t, err)
	d := dev.(*device)
	defer func() { require.NoError(t, d.Close()) }()
	list, err := d.Load(tr.program, norm, write)
	require.NoError(t, err)
	require.Len(t, list[2].(*executable).launches, 1)
	known := func() (list []bool) {
		for _, grad := range op.Grad[:2] {
			list = append(list, reflect.ValueOf(d.extents[grad]).Elem().FieldByName("known").Bool())
		}
		return list
	}
	require.NoError(t, list[1].Run(t.Context()))
	require.Equal(t, []bool{true, true}, known())
	require.NoError(t, list[2].Run(t.Context()))
	require.Equal(t, []bool{false, false}, known())
}
