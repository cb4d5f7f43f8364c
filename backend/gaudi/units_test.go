package gaudi

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/csrc/libsynapse"
	"octet/fp8"
)

func specOf(t *testing.T, model string) backend.Spec {
	s, err := spec(model)
	require.NoError(t, err)
	return s
}

// chain returns a program of n equal blocks. Each casts its input with its own records in
// packed vectors, and multiplies it by its own weights.
func chain(s backend.Spec, n int) *backend.Program {
	const width = 48
	vars := backend.NewVars()
	amax := vars.Tensor(backend.Stash, "amax", fp8.F32, n+3)
	scale, inverse := vars.Tensor(backend.State, "scale", fp8.F32, n+3), vars.Tensor(backend.State, "scale_inv", fp8.F32, n+3)
	x := vars.Tensor(backend.Input, "x", fp8.BF16, 32, width)
	one := vars.Tensor(backend.State, "one", fp8.F32, 1)
	p := vars.Program("chain")
	p.Add(&backend.Fill{Out: amax})
	for i := range n {
		q := p.Scope(fmt.Sprintf("layers.%d", i)).Block(fmt.Sprintf("layers.%d", i))
		w := vars.Tensor(backend.Stash, fmt.Sprintf("w%d", i), s.E4M3, width, width)
		w.Scale = one
		codes := q.Temp("codes", s.E4M3, 32, width)
		codes.Scale = inverse.Slice(fmt.Sprintf("inv%d", i), i, 1)
		q.Add(&backend.Quantize{X: x, Out: []backend.Cast{{
			Out: codes, Scale: scale.Slice(fmt.Sprintf("scale%d", i), i, 1), Amax: amax.Slice(fmt.Sprintf("amax%d", i), i, 1),
		}}})
		y := q.Temp("y", fp8.BF16, 32, width)
		q.Add(&backend.MatMul{A: codes, B: w, TransB: true, Residual: x, Out: y})
		x = y
	}
	p.Add(&backend.Quantize{X: x, Out: []backend.Cast{{Out: vars.Tensor(backend.Output, "y", fp8.F32, 32, width)}}})
	return p
}

func TestEqualBlocksAreOneUnit(t *testing.T) {
	for _, model := range []string{"gaudi2", "gaudi3"} {
		s := specOf(t, model)
		for _, n := range []int{3, 32} {
			p := chain(s, n)
			require.NoError(t, p.Err())
			c := newCutter(s, false, p)
			schedule, err := c.cut(p)
			require.NoError(t, err)
			require.Len(t, schedule.steps, n+2)
			require.Len(t, c.units, 3) // fill, a block, the last cast
			checkSchedule(t, s, c, schedule)
			for i := range n - 1 {
				require.Same(t, schedule.steps[1].unit, schedule.steps[2+i].unit)
			}
			// The arena holds only the temps between blocks, in two places.
			require.Equal(t, roundUp(32*48*2, own(s).align)*2, c.planOf(schedule).Bytes)
			o, err := outline(s, []*backend.Program{p})
			require.NoError(t, err)
			require.Equal(t, []backend.Launches{{Launches: n + 2, Compiled: 3}}, o.Launches)
			require.Equal(t, c.planOf(schedule).Bytes+schedule.steps[1].unit.workspace, o.Temps)
		}
	}
}

// Several consecutive blocks form one unit: fewer launches of units that are still equal,
// and fewer temps in the arena.
func TestUnitsOfSeveralBlocks(t *testing.T) {
	for unit, want := range map[int]struct{ launches, compiled, crossing int }{
		1: {7 + 2, 3, 2}, 2: {4 + 2, 4, 2}, 3: {3 + 2, 4, 2}, 7: {1 + 2, 3, 1}, 100: {1 + 2, 3, 1},
	} {
		s := specOf(t, fmt.Sprintf("gaudi2,unit=%d", unit))
		p := chain(s, 7)
		c := newCutter(s, false, p)
		schedule, err := c.cut(p)
		require.NoError(t, err)
		checkSchedule(t, s, c, schedule)
		require.Equal(t, roundUp(32*48*2, own(s).align)*int64(want.crossing), c.planOf(schedule).Bytes)
		o, err := outline(s, []*backend.Program{p})
		require.NoError(t, err)
		require.Equal(t, []backend.Launches{{Launches: want.launches, Compiled: want.compiled}}, o.Launches, unit)
		require.Equal(t, c.planOf(schedule).Bytes+schedule.steps[1].unit.workspace, o.Temps, "want the workspace of the largest unit")
	}
}

// The workspace is that of the compiler's own live tensors, without the persistent ones.
func TestWorkspace(t *testing.T) {
	s := specOf(t, "gaudi2")
	x := backend.NewVars().Tensor(backend.Stash, "x", fp8.F32, 8, 32)
	b := newBuilder(s, func(r *backend.Tensor) (layout, bool) { return layoutOf(r, nil, own(s).align), true })
	b.op = &backend.Node{Op: &backend.Add{}}
	v := b.in(x)
	for range 5 {
		v = b.mul(v, v)
	}
	b.out(x, b.add(v, b.table([]float32{1}, 1)))
	g, _, err := b.finish()
	require.NoError(t, err)
	require.EqualValues(t, 2*x.Bytes(), workspaceOf(g))
}

func roundUp(n, align int) int64 { return int64((n + align - 1) / align * align) }

func TestCutIsDeterministic(t *testing.T) {
	s := specOf(t, "gaudi2")
	p, err := lower(s, []*backend.Program{chain(s, 5)})
	require.NoError(t, err)
	var want []string
	for range 5 {
		schedule, err := newCutter(s, false, p...).cut(p[0])
		require.NoError(t, err)
		if want == nil {
			want = keys(schedule)
		}
		require.Equal(t, want, keys(schedule))
	}
}

// With perOp, every op is a unit and all temps are in the arena.
func TestUnitPerOp(t *testing.T) {
	s := specOf(t, "gaudi2")
	p := chain(s, 3)
	c := newCutter(s, true, p)
	schedule, err := c.cut(p)
	require.NoError(t, err)
	require.Len(t, schedule.steps, len(p.Nodes()))
	checkSchedule(t, s, c, schedule)
	plan := c.planOf(schedule)
	for _, temp := range p.Temps() {
		require.Contains(t, plan.Offsets, temp)
	}
}

// Outside of blocks, ops that pass whole temps to each other are one unit.
func TestUnitsOutsideBlocks(t *testing.T) {
	vars := backend.NewVars()
	out := vars.Tensor(backend.Output, "out", fp8.F32, 8, 64)
	p := vars.Program("p")
	cast := func(p *backend.Program, x, y *backend.Tensor) {
		p.Add(&backend.Quantize{X: x, Out: []backend.Cast{{Out: y}}})
	}
	temp := func(name string) *backend.Tensor { return p.Temp(name, fp8.F32, 8, 64) }
	a, b, c, d := temp("a"), temp("b"), temp("c"), temp("d")
	p.Add(&backend.Fill{Out: a})
	cast(p, a, b)                                       // reads a: same unit
	p.Add(&backend.Fill{Out: c})                        // not connected
	cast(p, c, out)                                     // same unit as the fill
	cast(p, out, temp("e"))                             // out is not a temp
	cast(p, b.RowRange(0, 4), temp("f").RowRange(0, 4)) // a view
	p.Add(&backend.AllReduce{X: out})
	q := p.Block("block")
	q.Add(&backend.Fill{Out: d})
	q.Add(&backend.Fill{Out: temp("g")}) // same block: same unit
	cast(p, d, out)
	require.NoError(t, p.Err())
	var firsts []int
	for _, s := range unitRanges(p.Nodes(), 1) {
		firsts = append(firsts, s.first)
	}
	require.Equal(t, []int{0, 0, 2, 2, 4, 5, 6, 7, 7, 9}, firsts)

	s := specOf(t, "gaudi2")
	cutter := newCutter(s, false, p)
	schedule, err := cutter.cut(p)
	require.NoError(t, err)
	require.IsType(t, &backend.AllReduce{}, schedule.steps[4].collective)
	checkSchedule(t, s, cutter, schedule)
	require.Equal(t, map[*backend.Tensor]bool{b: true, d: true, p.Temps()[5]: true}, schedule.arena)
}

// AdamW updates in place: the moments have one place, which the node that computes them
// writes, and all AdamW ops of a shape are one unit.
func TestAdamWIsInPlace(t *testing.T) {
	s := specOf(t, "gaudi2")
	vars := backend.NewVars()
	one := func(name string, d fp8.DType) *backend.Tensor { return vars.Tensor(backend.State, name, d, 1) }
	op := &backend.AdamW{
		Control: vars.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords),
		Step:    one("step", fp8.I32), Coef: one("coef", fp8.F32), Skip: one("skip", fp8.I32),
		Amaxes: vars.Tensor(backend.Stash, "scratch", fp8.F32, 3*4),
		Beta1:  0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, Pow2: true, FloorV: true, Rounding: fp8.Stochastic,
	}
	for i := range 4 {
		add := func(list, scales *[]*backend.Tensor, name string, d fp8.DType) {
			w := vars.Tensor(backend.State, fmt.Sprintf("%s%d", name, i), d, 64, 96)
			if d != fp8.F32 {
				w.Scale = one(w.Name+".scale_inv", fp8.F32)
			}
			*list = append(*list, w)
			if scales != nil {
				*scales = append(*scales, w.Scale)
			}
		}
		add(&op.Grad, nil, "grad", fp8.F32)
		add(&op.Master, &op.MasterScale, "master", fp8.F16)
		add(&op.M1, &op.M1Scale, "m1", s.E4M3)
		add(&op.M2, &op.M2Scale, "m2", fp8.E5M2)
	}
	p := vars.Program("update")
	p.Add(&backend.SumSquares{X: op.Grad, Out: one("norm", fp8.F32)})
	p.Add(op)
	require.NoError(t, p.Err())
	rewritten, err := lower(s, []*backend.Program{p})
	require.NoError(t, err)
	var adams []*backend.Node
	for _, n := range rewritten[0].Nodes() {
		if _, ok := n.Op.(*backend.AdamW); ok {
			adams = append(adams, n)
		}
	}
	require.Len(t, adams, 4)
	only := vars.Program("adams")
	for _, n := range adams {
		o := *n.Op.(*backend.AdamW)
		o.Amaxes = only.Temp(o.Amaxes.Name, fp8.F32, 3)
		only.Add(&o)
	}
	require.NoError(t, only.Err())
	c := newCutter(s, false, only)
	schedule, err := c.cut(only)
	require.NoError(t, err)
	require.Len(t, c.units, 1)
	checkSchedule(t, s, c, schedule)
	for i, step := range schedule.steps {
		g := step.unit.graph
		for _, list := range [][]*backend.Tensor{op.Master, op.M1, op.M2} {
			of := func(r region) bool { return r.root == list[i] }
			section := slices.IndexFunc(step.sections, of)
			require.Equal(t, list[i].Bytes(), step.sections[section].bytes)
			require.Equal(t, 1, len(slices.DeleteFunc(slices.Clone(step.sections), func(r region) bool { return !of(r) })))
			writers := 0
			for _, n := range g.Nodes {
				if g.Tensors[n.Out[0]].Section == section {
					writers++
					require.Contains(t, []string{"where_fwd_f16", "where_fwd_i8"}, n.GUID)
				}
			}
			require.Equal(t, 1, writers)
		}
	}
}

func TestUnsupportedOps(t *testing.T) {
	s := specOf(t, "gaudi2")
	for _, c := range []struct {
		want string
		op   func(v *backend.Vars) backend.Op
	}{
		{"e4m3ieee tensor fp32 × e5m2 tensor fp32", func(v *backend.Vars) backend.Op {
			return &backend.MatMul{A: coded(v, "a", s.E4M3), B: coded(v, "b", fp8.E5M2), Out: v.Tensor(backend.Stash, "out", fp8.F32, 16, 16)}
		}},
		{"the format e4m3; the E4M3 of Gaudi 2 is e4m3ieee", func(v *backend.Vars) backend.Op {
			return &backend.Quantize{X: v.Tensor(backend.Stash, "x", fp8.F32, 16, 16), Out: []backend.Cast{{Out: coded(v, "a", fp8.E4M3)}}}
		}},
		{"a transposed copy", func(v *backend.Vars) backend.Op {
			return &backend.Quantize{X: v.Tensor(backend.Stash, "x", fp8.F32, 16, 16), Out: []backend.Cast{{Out: coded(v, "a", fp8.E5M2), Transpose: true}}}
		}},
		{"of granularity 1x8", func(v *backend.Vars) backend.Op {
			a := coded(v, "a", fp8.E5M2)
			a.Block, a.Scale = backend.ScaleBlock{Rows: 1, Cols: 8}, v.Tensor(backend.Stash, "scales", fp8.F32, 16, 2)
			return &backend.Quantize{X: v.Tensor(backend.Stash, "x", fp8.F32, 16, 16), Out: []backend.Cast{{Out: a, ScaleInv: a.Scale, Limit: 1}}}
		}},
		{"at most 2^32", func(v *backend.Vars) backend.Op {
			return &backend.Fill{Out: v.Tensor(backend.Stash, "large", fp8.F32, 1<<15, 1<<15+1)}
		}},
	} {
		vars := backend.NewVars()
		p := vars.Program("p")
		p.Scope("layers.3").Add(c.op(vars))
		require.NoError(t, p.Err())
		lowered, err := lower(s, []*backend.Program{p})
		require.NoError(t, err)
		_, err = outline(s, lowered)
		require.ErrorIs(t, err, backend.ErrUnsupported)
		require.ErrorContains(t, err, c.want)
		require.ErrorContains(t, err, "layers.3: ")
	}
}

func coded(v *backend.Vars, name string, d fp8.DType) *backend.Tensor {
	t := v.Tensor(backend.Stash, name, d, 16, 16)
	t.Scale = v.Tensor(backend.Stash, name+".scale", fp8.F32, 1)
	return t
}

// The table keeps the bits of 1 − βᵗ that FP32 arithmetic would lose.
func TestBiasCorrections(t *testing.T) {
	s := specOf(t, "gaudi2")
	vars := backend.NewVars()
	step, out := vars.Tensor(backend.State, "step", fp8.I32, 1), vars.Tensor(backend.Stash, "out", fp8.F32, 3)
	betas := []float64{0, 0.9, 0.99995}
	for _, n := range []int{1, 2, 255, 256, 257, 1000, 70000, 1<<24 - 1, 1 << 24, 1 << 30} {
		b := newBuilder(s, func(r *backend.Tensor) (layout, bool) { return layoutOf(r, nil, 128), true })
		b.op = &backend.Node{Op: &backend.AdamW{}}
		b.out(out, b.biasCorrections(b.in(step), betas...))
		g, sections, err := b.finish()
		require.NoError(t, err)
		memory := map[*backend.Tensor][]byte{step: {byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)}, out: make([]byte, 12)}
		l := &launch{spec: s, g: g, rng: rand.New(rand.NewPCG(1, uint64(n)))}
		for _, r := range sections {
			l.sections = append(l.sections, memory[r.root])
		}
		require.NoError(t, l.run())
		for i, got := range l.decode(libsynapse.F32, memory[out]) {
			want := -math.Expm1(float64(min(n, 1<<24-1)) * math.Log(betas[i]))
			require.InEpsilon(t, want, got, 1e-6, "%v^%d", betas[i], n)
		}
	}
}
