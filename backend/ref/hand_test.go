package ref

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// board declares variables with values, runs one op and reads the variables.
type board struct {
	*testing.T
	vars *backend.Vars
	data map[*backend.Tensor][]float64
	b    *Backend
}

func newBoard(t *testing.T) *board {
	return &board{T: t, vars: backend.NewVars(), data: map[*backend.Tensor][]float64{}}
}

func (o *board) f(name string, values ...float64) *backend.Tensor {
	t := o.vars.Tensor(backend.Stash, name, fp8.F32, len(values))
	o.data[t] = values
	return t
}

func (o *board) m(name string, rows, cols int, values ...float64) *backend.Tensor {
	t := o.vars.Tensor(backend.Stash, name, fp8.F32, rows, cols)
	o.data[t] = values
	return t
}

func (o *board) i(name string, values ...float64) *backend.Tensor {
	t := o.vars.Tensor(backend.Stash, name, fp8.I32, len(values))
	o.data[t] = values
	return t
}

func (o *board) run(op backend.Op) {
	p := o.vars.Program("p")
	p.Add(op)
	require.NoError(o, p.Err())
	b, run := load(o.T, Exact, p)
	for t, values := range o.data {
		require.NoError(o, b.SetValues(t, values))
	}
	require.NoError(o, run.Run(o.Context()))
	o.b = b
}

func (o *board) expect(t *backend.Tensor, want ...float64) {
	got, err := o.b.Values(t)
	require.NoError(o, err)
	require.InDeltaSlice(o, want, got, 1e-12, "%s", t)
}

func TestSmoothScaleByHand(t *testing.T) {
	o := newBoard(t)
	// m/k is 16, 17, 1/4, 2^80; the last two channels are dead.
	m := o.f("m", 16, 17, 0.5, 0x1p80, 0, 3)
	op := &backend.SmoothScale{
		SmoothMax: m, ChannelMax: m, WeightMax: o.f("k", 1, 1, 2, 1, 1, 0),
		C: o.f("c", 0, 0, 0, 0, 0, 0), InvC: o.f("inv_c", 0, 0, 0, 0, 0, 0),
		HScale: o.f("h", 0), HScaleInv: o.f("h_inv", 0), WScale: o.f("w", 0), WScaleInv: o.f("w_inv", 0),
		HAmax: o.f("h_amax", 1), WAmax: o.f("w_amax", 0x1p40), HLimit: 448, WLimit: 240,
		Balanced: true, HPow2: true, WPow2: true,
	}
	o.run(op)
	o.expect(op.C, 4, 8, 0.5, 0x1p30, 1, 1)
	o.expect(op.InvC, 0.25, 0.125, 2, 0x1p-30, 1, 1)
	o.expect(op.HScale, 0x1p-42) // 448/2^50, rounded down
	o.expect(op.HScaleInv, 0x1p42)
	o.expect(op.WScale, 0x1p-23) // 240/2^30
	o.expect(op.WScaleInv, 0x1p23)
	o.expect(op.HAmax, 0x1p50)
	o.expect(op.WAmax, 0x1p40)

	// c comes from other maxima: not balanced, with a margin, exact.
	op.SmoothMax = o.f("f", 3, 0, 0.5, 0x1p80, 7, 5)
	op.Balanced, op.Exact, op.Margin, op.HPow2 = false, true, 1, false
	o.run(op)
	o.expect(op.C, 6, 1, 1, 0x1p30, 14, 10)
	o.expect(op.HScale, float64(float32(448)/0x1p50))
	op.Exact = false
	o.run(op)
	o.expect(op.C, 8, 1, 1, 0x1p30, 16, 16)
}

func TestTokenScaleByHand(t *testing.T) {
	o := newBoard(t)
	// silu of a large gate is the gate; the maxima of rows 2 and 3 (0, infinity) give no
	// scale.
	up := o.m("up", 4, 2, 1.5, -0.5, 0.25, 0.125, 0, 0, math.Inf(1), 1)
	gate := o.m("gate", 4, 2, 1000, 2000, 1000, 4000, 1000, 1000, 1000, 1000)
	op := &backend.SwiGLU{Up: up, Gate: gate, TokenScale: o.f("r", 0, 0, 0, 0), Out: []backend.Cast{{Out: o.m("h", 4, 2, make([]float64, 8)...)}}}
	o.run(op)
	o.expect(op.TokenScale, 2048, 512, 1, 1)
	o.expect(op.Out[0].Out.RowRange(0, 3), 1500./2048, -1000./2048, 250./512, 500./512, 0, 0)
	op.Exact = true
	o.run(op)
	o.expect(op.TokenScale, 1500, 500, 1, 1)
	op.ScaleOfUp = true
	o.run(op)
	o.expect(op.TokenScale, 1.5, 0.25, 1, 1)
	o.expect(op.Out[0].Out.RowRange(0, 3), 1000, -1000/1.5, 1000, 2000, 0, 0)
}

// From zero moments, Adam's first step has size lr for every gradient magnitude if ε is
// 0. The EpsHat form multiplies ε by 1/√(1−β2).
func TestAdamWByHand(t *testing.T) {
	for form, eps := range map[backend.EpsForm]float64{backend.EpsHat: 0.5 / math.Sqrt(1-0.75), backend.EpsCorrected: 0.5} {
		o := newBoard(t)
		one := func(x *backend.Tensor) []*backend.Tensor { return []*backend.Tensor{x} }
		words := make([]float64, backend.ControlWords)
		words[6] = float64(math.Float32bits(0.25))
		p, m1, m2 := o.f("p", 1, 1), o.f("m1", 0, 0), o.f("m2", 0, 0)
		op := &backend.AdamW{
			Grad: one(o.f("g", 6, -2)), Master: one(p), M1: one(m1), M2: one(m2),
			MasterScale: one(nil), M1Scale: one(nil), M2Scale: one(nil),
			Control: o.i("step.control", words...), Step: o.i("step", 1), Coef: o.f("coef", 0.5), Skip: o.i("skip", 0), Amaxes: o.f("scratch", 0, 0, 0),
			Beta1: 0.5, Beta2: 0.75, Eps: 0.5, WeightDecay: 0.5, EpsForm: form,
		}
		o.run(op)
		o.expect(m1, 1.5, -0.5)
		o.expect(m2, 2.25, 0.25)
		o.expect(p, 1-0.125-0.25*3/(3+eps), 1-0.125+0.25*1/(1+eps))
	}
}

// With two passes, the first only computes amaxes; the second uses the given amaxes, the
// maxima over all ranks.
func TestAdamWInTwoPassesByHand(t *testing.T) {
	for _, test := range []struct {
		name       string
		only       bool
		amax       float64 // of m1, before the op
		before     float64 // scale_inv of m1
		afterwards float64
		codes      []float64
		inv        float64
	}{
		{"the first pass", true, 0, 1, 2, []float64{0, 0}, 1},
		{"larger amax on another rank", false, 4, 1, 4, []float64{224, -112}, 1. / 112},
		{"given amax below the rank's own", false, 1, 1, 1, []float64{448, -448}, 1. / 448},
		{"an amax that gives no scale: the old one stays", false, 0, 0.25, 0, []float64{8, -4}, 0.25},
	} {
		o := newBoard(t)
		one := func(x *backend.Tensor) []*backend.Tensor { return []*backend.Tensor{x} }
		m1 := o.vars.Tensor(backend.Stash, "m1", fp8.E4M3, 2)
		m1.Scale = o.f("m1.scale_inv", test.before)
		op := &backend.AdamW{
			Grad: one(o.f("g", 4, -2)), Master: one(o.f("p", 1, 1)), M1: one(m1), M2: one(o.f("m2", 0, 0)),
			MasterScale: one(nil), M1Scale: one(m1.Scale), M2Scale: one(nil),
			Control: o.i("step.control", make([]float64, backend.ControlWords)...), Step: o.i("step", 1), Coef: o.f("coef", 1), Skip: o.i("skip", 0),
			Amaxes: o.f("amaxes", 0, test.amax, 0), AmaxOnly: test.only, AmaxGiven: !test.only,
			Beta1: 0.5, Beta2: 0.75, Eps: 0.5, // m1 becomes 2 and -1
		}
		o.run(op)
		o.expect(op.Amaxes, 0, test.afterwards, 0)
		o.expect(m1, test.codes...)
		o.expect(m1.Scale, test.inv)
	}
}

func TestStepGateByHand(t *testing.T) {
	for _, c := range []struct{ squares, amax, clip, norm, coef, skip, step float64 }{
		{9, 1, 1.5, 3, 1.5 / (3 + 1e-6), 0, 8},
		{9, 1, 5, 3, 1, 0, 8},
		{9, 1, 0, 3, 1, 0, 8},
		{9, math.Inf(1), 0, 3, 1, 1, 7},
	} {
		o := newBoard(t)
		op := &backend.StepGate{
			SumSquares: o.f("squares", c.squares), Amax: o.f("amax", 1, c.amax), Step: o.i("step", 7),
			GradNorm: o.f("norm", 0), Coef: o.f("coef", 0), Skip: o.i("skip", 0), Clip: float32(c.clip),
		}
		o.run(op)
		o.expect(op.GradNorm, c.norm)
		o.expect(op.Coef, c.coef)
		o.expect(op.Skip, c.skip)
		o.expect(op.Step, c.step)
	}
}

func TestRopeByHand(t *testing.T) {
	o := newBoard(t)
	x := o.vars.Tensor(backend.Stash, "x", fp8.F32, 2, 4)
	out := o.vars.Tensor(backend.Stash, "out", fp8.F32, 2, 4)
	o.data[x] = []float64{1, 2, 3, 4, 1, 0, 0, 1}
	o.run(&backend.Rope{X: x, Out: cast(out), Seq: 2, HeadDim: 4, Theta: 100})
	// Row 0 does not change; in row 1 the pair (0, 2) rotates by 1, (1, 3) by 1/10.
	o.expect(out, 1, 2, 3, 4, math.Cos(1), -math.Sin(0.1), math.Sin(1), math.Cos(0.1))
}

// Columns 0 and 1 share a scale in each row; column 2 has its own, one for a block of
// zeros. The largest element of a block becomes the format's limit.
func TestBlockScalesByHand(t *testing.T) {
	for _, transpose := range []bool{false, true} {
		o := newBoard(t)
		x := o.m("x", 2, 3, 1, -2, 4, 896, 7, 0)
		c := backend.Cast{Limit: 448, Transpose: transpose}
		rows, cols, block := 2, 3, backend.ScaleBlock{Rows: 1, Cols: 2}
		codes, inv := []float64{224, -448, 448, 448, 3.5, 0}, []float64{1. / 224, 1. / 112, 2, 1}
		if transpose {
			rows, cols, block = 3, 2, backend.ScaleBlock{Rows: 2, Cols: 1}
			codes, inv = []float64{224, 448, -448, 3.5, 448, 0}, []float64{1. / 224, 2, 1. / 112, 1}
		}
		c.Out = o.vars.Tensor(backend.Stash, "out", fp8.E4M3, rows, cols)
		scaleRows, scaleCols := block.ScaleShape(rows, cols)
		c.ScaleInv = o.m("inv", scaleRows, scaleCols, 0, 0, 0, 0)
		c.Out.Scale, c.Out.Block = c.ScaleInv, block
		o.run(&backend.Quantize{X: x, Out: []backend.Cast{c}})
		o.expect(c.Out, codes...)
		o.expect(c.ScaleInv, inv...)
	}
	// The smallest power of two that brings 1,000 below E4M3's maximum is 4.
	o := newBoard(t)
	c := backend.Cast{Out: o.vars.Tensor(backend.Stash, "out", fp8.E4M3, 1, 2)}
	c.ScaleInv = o.vars.Tensor(backend.Stash, "inv", fp8.E8M0, 1)
	c.Rule = fp8.RoundUp
	o.data[c.ScaleInv] = []float64{1}
	c.Out.Scale, c.Out.Block = c.ScaleInv, backend.PerRow
	o.run(&backend.Quantize{X: o.m("x", 1, 2, 1000, 40), Out: []backend.Cast{c}})
	o.expect(c.Out, 256, 10)
	o.expect(c.ScaleInv, 4)
}
