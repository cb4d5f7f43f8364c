package nn

import (
	"math"

	"octet/backend"
	"octet/fp8"
)

// Accumulator-aware quantization (A2Q, arXiv 2301.13376) bounds the L1 norm of each row q of
// integer weights, rounded toward zero, so that no input of fprop overflows an accumulator of P
// bits, in any order of the sum:
//
//	Σ|q| ≤ (2^(P−1) − 1)/2^(N−1), with N the bits of the input
//
// A2Q divides a row by its norm and multiplies it by a learned one, up to the bound. Here the weights
// keep their norm, and the scale of the tensor becomes so small that all rows obey the bound:
// min(127/amax, bound/max‖w‖₁). Gradients pass straight through to the master.

// l1Bound returns the largest L1 norm of a row of codes, a whole number; 0 without a bound.
func (b *Base) l1Bound(l *Linear) float64 {
	if b.Recipe.L1Bits == 0 || !l.fprop.b.DType.IsInteger() || !l.fprop.b.DType.IsQuantized() {
		return 0
	}
	return math.Floor((math.Exp2(float64(b.Recipe.L1Bits-1)) - 1) / float64(l.fprop.a.DType.Max()+1))
}

// rowBounds has, of each row of X, the amax whose scale Limit/amax keeps the codes within Limit
// and their L1 norm within Norm: max(amax, Limit·‖x‖₁/Norm).
type rowBounds struct {
	backend.Custom
	X   *backend.Tensor `op:"in"`  // [rows, cols]
	Out *backend.Tensor `op:"out"` // F32 [rows, 1]

	Limit, Norm float64
}

// Check implements backend.CustomOp.
func (o *rowBounds) Check(c *backend.Check) {
	c.Matrix("Out", o.Out, o.X.Rows(), 1)
	c.That(o.Limit >= 1 && o.Norm >= 1, "Limit is %v and Norm %v, expected 1 or more", o.Limit, o.Norm)
}

func (o *rowBounds) of(amax, norm float64) float64 { return max(amax, o.Limit*norm/o.Norm) }

// Reference implements backend.CustomOp.
func (o *rowBounds) Reference(a backend.Arguments) {
	cols, out := o.X.Cols(), make([]float64, o.X.Rows())
	amax, norm := make([]float64, len(out)), make([]float64, len(out))
	for i, x := range a.Read(o.X) {
		amax[i/cols] = max(amax[i/cols], math.Abs(x))
		norm[i/cols] += math.Abs(x)
	}
	for r := range out {
		out[r] = o.of(amax[r], norm[r])
	}
	a.Store(o.Out, out)
}

// Loop implements backend.Looped.
func (o *rowBounds) Loop() backend.Loop {
	return backend.Loop{In: []*backend.Tensor{o.X}, Out: [][]backend.Cast{{{Out: o.Out}}}, WholeRows: true, F: func(out, in [][]float32) {
		amax, norm := 0.0, 0.0
		for _, v := range in[0] {
			x := math.Abs(float64(v))
			amax, norm = max(amax, x), norm+x
		}
		out[0][0] = float32(o.of(amax, norm))
	}}
}

// truncated is Out = trunc(X·Scale)/Scale, which a cast with this scale stores without an error.
type truncated struct {
	backend.Custom
	X     *backend.Tensor `op:"in"`
	Scale *backend.Tensor `op:"in"` // F32 [1]
	Out   []backend.Cast  `op:"cast"`
}

// Check implements backend.CustomOp.
func (o *truncated) Check(c *backend.Check) {
	c.Vector("Scale", o.Scale, 1)
	c.Casts("Out", o.Out, o.X.Rows(), o.X.Cols())
}

// Reference implements backend.CustomOp.
func (o *truncated) Reference(a backend.Arguments) {
	y, scale := a.Read(o.X), a.Read(o.Scale)[0]
	for i := range y {
		y[i] = math.Trunc(y[i]*scale) / scale
	}
	a.Cast(o.Out, y, o.X.Cols())
}

// Loop implements backend.Looped.
func (o *truncated) Loop() backend.Loop {
	return backend.Loop{In: []*backend.Tensor{o.X, o.Scale}, Out: [][]backend.Cast{o.Out}, WholeRows: true, F: func(out, in [][]float32) {
		scale := float64(in[1][0])
		for i, x := range in[0] {
			out[0][i] = float32(math.Trunc(float64(x)*scale) / scale)
		}
	}}
}

// boundedAmax appends what the scale of the weight follows from.
func (l *Linear) boundedAmax(p *Pass, amax *backend.Tensor) {
	if l.l1 == 0 {
		p.Add(&backend.Amax{X: l.weight.whole, Out: amax})
		return
	}
	rows := p.root.Temp(l.copies.name+".l1", fp8.F32, l.weight.Master.Rows(), 1)
	p.Add(&rowBounds{X: l.weight.whole, Out: rows, Limit: float64(l.fprop.b.DType.Max()), Norm: l.l1})
	p.Add(&backend.Amax{X: rows, Out: amax})
}
