package emu

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
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
	product := func(x, y, out *backend.Tensor) *backend.MatMul { return &backend.MatMul{A: x, B: y, Out: out} }
	with := func(m *backend.MatMul, change func(*backend.MatMul)) *backend.MatMul { change(m); return m }
	accumulate := func(m *backend.MatMul) { m.Accumulate = true }
	maximum := func(i int) func(*backend.MatMul) {
		return func(m *backend.MatMul) { m.Amax = amax.Slice(fmt.Sprint("amax", i), i, 1) }
	}
	for _, test := range []struct {
		name  string
		ops   []backend.Op
		group int // of the first op
	}{
		{"independent", []backend.Op{product(a, b, w1), product(b, a, w2), product(a, a, c)}, 3},
		{"writes what another reads", []backend.Op{product(a, b, w1), product(b, b, a)}, 1},
		{"reads what another writes", []backend.Op{product(a, b, w1), product(w1, b, c)}, 1},
		{"write the same", []backend.Op{product(a, b, w1), product(b, a, w1)}, 1},
		{"accumulate", []backend.Op{product(a, b, w1), product(a, b, w2), with(product(b, a, w1), accumulate)}, 2},
		{"own maxima", []backend.Op{with(product(a, b, e1), maximum(0)), with(product(a, b, e2), maximum(1))}, 2},
		{"one maximum", []backend.Op{with(product(a, b, e1), maximum(0)), with(product(a, b, e2), maximum(0))}, 1},
		{"another op between", []backend.Op{product(a, b, w1), &backend.Fill{Out: c}, product(a, b, w2)}, 1},
		{"another op first", []backend.Op{&backend.Fill{Out: c}, &backend.Fill{Out: w1}}, 1},
	} {
		p := vars.Program(test.name)
		for _, op := range test.ops {
			p.Add(op)
		}
		require.NoError(t, p.Err(), test.name)
		group := grouped(p)
		for i := range p.Nodes() {
			first, end := group(p.Nodes(), i)
			require.True(t, first <= i && i <= end, test.name)
			if i == 0 {
				require.Equal(t, []int{0, test.group}, []int{first, end + 1}, test.name)
			}
		}
	}
}

// Temps of a grouped GEMM share no bytes, though one op after the other they would: product 1 could
// take the place of copy 0. Observed runs, one op after the other, give the same bits.
func TestGroupedTemps(t *testing.T) {
	tr := newTrial(t)
	const n = 48
	x, sum := tr.tensor("x", fp8.F32, tr.noise(n*n), n, n), tr.tensor("sum", fp8.F32, nil, n, n)
	temp := func(name string) *backend.Tensor { return tr.program.Temp(name, fp8.F32, n, n) }
	var copies, products []*backend.Tensor
	for i := range 3 {
		copies = append(copies, temp(fmt.Sprint("copy", i)))
		tr.program.Add(&backend.Quantize{X: x, Out: []backend.Cast{{Out: copies[i]}}})
	}
	for i, c := range copies {
		products = append(products, temp(fmt.Sprint("product", i)))
		tr.program.Add(&backend.MatMul{A: c, B: x, Out: products[i]})
	}
	for i, y := range products {
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
