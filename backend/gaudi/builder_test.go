package gaudi

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/ref"
	"octet/fp8"
)

// agree runs a program on ref and in the interpreter with the same values of its
// variables, and requires the same bytes.
func agree(t *testing.T, model string, p *backend.Program, values map[*backend.Tensor][]float64) {
	t.Helper()
	require.NoError(t, p.Err())
	d := interpreterDriver(model)
	s := specOf(t, model)
	lowered, err := backend.Lower(s, p)
	require.NoError(t, err)
	c := newCutter(s, false, lowered...)
	schedule, err := c.cut(lowered[0])
	require.NoError(t, err)
	checkSchedule(t, s, c, schedule)

	got, err := d.Open("", backend.Options{})
	require.NoError(t, err)
	want := ref.Open(nil, ref.Rounded)
	for range 20 { // random orders of nodes
		var runs []backend.Executable
		for b, p := range map[backend.Backend]*backend.Program{want: p, got: lowered[0]} {
			loaded, err := b.Load(p)
			require.NoError(t, err)
			runs = append(runs, loaded...)
		}
		for v := range p.Vars().All() {
			raw := make([]byte, v.Bytes())
			if x := values[v]; x != nil {
				require.NoError(t, want.SetValues(v, x))
			}
			require.NoError(t, want.Read(v, raw))
			require.NoError(t, got.Write(v, raw))
		}
		for _, x := range runs {
			require.NoError(t, x.Run(t.Context()))
		}
		for v := range p.Vars().All() {
			a, b := make([]byte, v.Bytes()), make([]byte, v.Bytes())
			require.NoError(t, want.Read(v, a))
			require.NoError(t, got.Read(v, b))
			require.Equal(t, a, b, v)
		}
		want = ref.Open(nil, ref.Rounded)
	}
}

// ramp returns n values of both signs.
func ramp(n int) []float64 {
	list := make([]float64, n)
	for i := range list {
		list[i] = float64(i%11-5) * math.Exp2(float64(i%7))
	}
	return list
}

// In one unit, a variable is read, partly overwritten, read through another view, fully
// overwritten, and so on: only places imply the order.
func TestOrderInsideAUnit(t *testing.T) {
	vars := backend.NewVars()
	v := func(name string, shape ...int) *backend.Tensor {
		return vars.Tensor(backend.Stash, name, fp8.F32, shape...)
	}
	x, packed := v("x", 8, 32), v("packed", 40)
	p := vars.Program("p")
	q := p.Block("block")
	cast := func(from, to *backend.Tensor) { q.Add(&backend.Quantize{X: from, Out: []backend.Cast{{Out: to}}}) }
	cast(x, v("before", 8, 32))
	q.Add(&backend.Fill{Out: x.RowRange(2, 3), Value: 7})
	cast(x, v("partly", 8, 32))
	cast(x.RowRange(1, 2), v("rows", 2, 32))
	q.Add(&backend.Fill{Out: x.Columns("columns", 3, 5), Value: -2})
	cast(x.RowRange(4, 4).Columns("corner", 2, 3), v("corner.copy", 4, 3))
	q.Add(&backend.Fill{Out: x, Value: 1})
	cast(x, v("after", 8, 32))

	q.Add(&backend.Fill{Out: packed, Value: 3})
	for _, i := range []int{0, 17, 39} {
		q.Add(&backend.Amax{X: x.RowRange(i%8, 1), Out: packed.Slice("record", i, 1)})
	}
	cast(packed, v("records", 40))
	local := q.Temp("local", fp8.F32, 40)
	cast(packed, local) // keeps the current contents
	q.Add(&backend.Fill{Out: packed})
	cast(local, v("kept", 40))
	for _, model := range []string{"gaudi2", "gaudi3"} {
		agree(t, model, p, map[*backend.Tensor][]float64{x: ramp(x.Elems()), packed: ramp(40)})
	}
}

// Casts of one X to both formats share a kernel where possible.
func TestCastsToBothFormats(t *testing.T) {
	for _, model := range []string{"gaudi2", "gaudi3"} {
		e4m3 := specOf(t, model).E4M3
		for _, swap := range []bool{false, true} {
			vars := backend.NewVars()
			one := func(name string) *backend.Tensor { return vars.Tensor(backend.State, name, fp8.F32, 1) }
			x := vars.Tensor(backend.Stash, "x", fp8.BF16, 16, 24)
			values := map[*backend.Tensor][]float64{x: ramp(x.Elems())}
			to := func(name string, d fp8.DType, scale, amax float64) backend.Cast {
				out := vars.Tensor(backend.Stash, name, d, 16, 24)
				out.Scale = one(name + ".inv")
				c := backend.Cast{Out: out, Scale: one(name + ".scale"), Amax: one(name + ".amax")}
				values[c.Scale], values[c.Amax] = []float64{scale}, []float64{amax}
				return c
			}
			casts := []backend.Cast{to("a", e4m3, 0.5, 1), to("b", fp8.E5M2, 0x1p7, 1e9), to("c", e4m3, 3, math.NaN()), to("d", fp8.E5M2, 1, math.Inf(1)), to("e", fp8.E5M2, 1, 0)}
			if swap {
				casts[0], casts[1] = casts[1], casts[0]
			}
			p := vars.Program("p")
			p.Add(&backend.Quantize{X: x, Out: casts})
			agree(t, model, p, values)
			require.Equal(t, []string{"convert_to_fp8_hybrid_bf16", "convert_to_fp8_hybrid_bf16", "convert_to_fp8_bf16"}, conversions(t, model, p))
		}
	}
}

// The rounding is a parameter of the kernel, so casts with different roundings need two
// kernels.
func TestRoundingsKeepCastsApart(t *testing.T) {
	s := specOf(t, "gaudi2")
	vars := backend.NewVars()
	p := vars.Program("p")
	x := vars.Tensor(backend.Stash, "x", fp8.F32, 16, 16)
	control := vars.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)
	p.Add(&backend.Quantize{X: x, Out: []backend.Cast{
		{Out: coded(vars, "a", s.E4M3)},
		{Out: coded(vars, "b", fp8.E5M2), Rounding: fp8.Stochastic, Control: control},
	}})
	require.Equal(t, []string{"convert_to_fp8_f32", "convert_to_fp8_f32"}, conversions(t, "gaudi2", p))
}

// conversions returns the cast kernels of a program.
func conversions(t *testing.T, model string, p *backend.Program) (list []string) {
	require.NoError(t, p.Err())
	s := specOf(t, model)
	schedule, err := newCutter(s, false, p).cut(p)
	require.NoError(t, err)
	for _, step := range schedule.steps {
		for _, n := range step.unit.graph.Nodes {
			if len(n.GUID) > 7 && n.GUID[:7] == "convert" {
				list = append(list, n.GUID)
			}
		}
	}
	return list
}

// An op that reads overwritten contents is an error, not a wrong result.
func TestStaleReadsAreErrors(t *testing.T) {
	s := specOf(t, "gaudi2")
	vars := backend.NewVars()
	x := vars.Tensor(backend.Stash, "x", fp8.F32, 8, 8)
	y := vars.Tensor(backend.Stash, "y", fp8.F32, 8, 8)
	b := newBuilder(s, func(r *backend.Tensor) (layout, bool) { return layoutOf(r, nil, own(s).align), true })
	b.op = &backend.Node{Op: &backend.Add{}, Scope: "layers.0"}
	old := b.in(x)
	b.out(x, b.add(old, old))
	b.out(y, b.mul(old, old))
	_, _, err := b.finish()
	require.ErrorContains(t, err, "that an earlier node overwrote")
}

// A node may write directly to a place only if no later node reads the old contents, and
// if it reads them only elementwise; otherwise its result is copied there.
func TestInPlaceWrites(t *testing.T) {
	s := specOf(t, "gaudi2")
	for _, c := range []struct {
		name, writer string
		build        func(b *builder, x, y *backend.Tensor)
	}{
		{"another operand's", "mult_fwd_f32", func(b *builder, x, y *backend.Tensor) { b.out(x, b.mul(b.in(y), b.in(y))) }},
		{"in place", "add_fwd_f32", func(b *builder, x, y *backend.Tensor) { b.out(x, b.add(b.in(x), b.in(y))) }},
		{"not element by element", "identity", func(b *builder, x, y *backend.Tensor) { b.out(x, b.transpose(b.in(x), 1, 0)) }},
		{"of another place", "identity", func(b *builder, x, y *backend.Tensor) {
			rows := b.add(b.in(x.RowRange(0, 16)), b.in(x.RowRange(16, 16)))
			b.out(x.RowRange(8, 16), rows)
		}},
		{"read by a later node", "identity", func(b *builder, x, y *backend.Tensor) {
			v := b.mul(b.in(y), b.in(y))
			b.out(y, b.add(b.in(x), b.in(x)))
			b.out(x, v)
		}},
		{"a copy", "identity", func(b *builder, x, y *backend.Tensor) { b.out(x, b.in(y)) }},
		{"twice", "identity", func(b *builder, x, y *backend.Tensor) {
			v := b.mul(b.in(y), b.in(y))
			b.out(y, v)
			b.out(x, v)
		}},
	} {
		vars := backend.NewVars()
		x := vars.Tensor(backend.Stash, "x", fp8.F32, 32, 32)
		y := vars.Tensor(backend.Stash, "y", fp8.F32, 32, 32)
		b := newBuilder(s, func(r *backend.Tensor) (layout, bool) { return layoutOf(r, nil, own(s).align), true })
		b.op = &backend.Node{Op: &backend.Add{}}
		c.build(b, x, y)
		g, sections, err := b.finish()
		require.NoError(t, err, c.name)
		checkOrder(t, c.name, g)
		for _, n := range g.Nodes {
			if k := g.Tensors[n.Out[0]].Section; k >= 0 && sections[k].root == x {
				require.Equal(t, c.writer, n.GUID, c.name)
			}
		}
	}
}
