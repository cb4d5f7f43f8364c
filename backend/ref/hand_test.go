package ref

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// board declares variables with values and reads them after one op.
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
	op := &backend.SmoothScale{
		// m/k is 16, 17, 1/4, 2^80, and two dead channels.
		ChannelMax: o.f("m", 16, 17, 0.5, 0x1p80, 0, 3), WeightMax: o.f("k", 1, 1, 2, 1, 1, 0),
		C: o.f("c", 0, 0, 0, 0, 0, 0), InvC: o.f("inv_c", 0, 0, 0, 0, 0, 0),
		HScale: o.f("h", 0), HScaleInv: o.f("h_inv", 0), WScale: o.f("w", 0), WScaleInv: o.f("w_inv", 0),
		Seen: o.f("seen", 20, 0, 0, 0, 0, 0), Amax: o.f("amax", 1), HLimit: 448, WLimit: 240,
	}
	o.run(op)
	o.expect(op.C, 4, 8, 0.5, 0x1p30, 1, 1)
	o.expect(op.InvC, 0.25, 0.125, 2, 0x1p-30, 1, 1)
	o.expect(op.HScale, 0x1p-42) // 448/2^50, rounded down
	o.expect(op.HScaleInv, 0x1p42)
	o.expect(op.WScale, 0x1p-23) // 240/2^30
	o.expect(op.WScaleInv, 0x1p23)
	o.expect(op.Seen, 20, 17, 0.5, 0x1p80, 0, 3)
	o.expect(op.Amax, 0x1p80)
}

// From moments of zero, Adam's first step is lr in the direction of the
// gradient, whatever its size; in the EpsHat form ε counts for 1/√(1−β2) more.
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
			Control: o.i("step.control", words...), Step: o.i("step", 1), Coef: o.f("coef", 0.5), Skip: o.i("skip", 0), Scratch: o.f("scratch", 0, 0, 0),
			Beta1: 0.5, Beta2: 0.75, Eps: 0.5, WeightDecay: 0.5, EpsForm: form,
		}
		o.run(op)
		o.expect(m1, 1.5, -0.5)
		o.expect(m2, 2.25, 0.25)
		o.expect(p, 1-0.125-0.25*3/(3+eps), 1-0.125+0.25*1/(1+eps))
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
	// Row 0 stays; in row 1 the pair (0, 2) turns by 1 and (1, 3) by 1/10.
	o.expect(out, 1, 2, 3, 4, math.Cos(1), -math.Sin(0.1), math.Sin(1), math.Cos(0.1))
}
