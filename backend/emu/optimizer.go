package emu

import (
	"math"

	"octet/backend"
	"octet/backend/emu/memory"
	"octet/fp8"
)

var _ = implementOp(row{blockScaled: []string{"M1", "M2"}, keepsExtents: true}, func(b *binder, _ *backend.Node, o *backend.AdamW) (kernel, error) {
	return compute(b.adamW(o).bind(b.pool)), nil
})

func (b *binder) adamW(o *backend.AdamW) *adamW {
	a := &adamW{
		params: make([]adamParam, len(o.Grad)),
		beta1:  o.Beta1, beta2: o.Beta2, eps: o.Eps, epsForm: o.EpsForm, weightDecay: o.WeightDecay,
		rounding: o.Rounding, pow2: o.Pow2, floorV: o.FloorV,
		amaxOnly: o.AmaxOnly, amaxGiven: o.AmaxGiven, shard: o.Shard,
		control: b.i32(o.Control), step: b.i32(o.Step), skip: b.i32(o.Skip),
		coef: b.f32(o.Coef), amaxes: b.f32(o.Amaxes),
	}
	for i := range a.params {
		p := &a.params[i]
		p.grad, p.extents = b.matrix(o.Grad[i]), b.extents[o.Grad[i]]
		for j, t := range []*backend.Tensor{o.Master[i], o.M1[i], o.M2[i]} {
			p.state[j] = adamState{Matrix: b.matrix(t), block: t.Block.Cols, stream: fp8.NameKey(t.Name), extents: b.extents[t]}
			p.state[j].Scale = b.f32(t.Scale) // all of them, unlike matrix
		}
	}
	return a
}

var _ = implement((*binder).sumSquares)

func (b *binder) sumSquares(o *backend.SumSquares) func() {
	list, noted := make([]memory.Matrix, len(o.X)), make([]*extents, len(o.X))
	for i, x := range o.X {
		list[i], noted[i] = b.matrix(x), b.extents[x]
	}
	return sumSquares(b.pool, list, noted, b.f32(o.Out))
}

var _ = implement((*binder).stepGate)

// stepGate computes in float64. For a skipped step it records the norm unchanged; the
// coefficient is then unused.
func (b *binder) stepGate(o *backend.StepGate) func() {
	sumSquares, amax := b.f32(o.SumSquares), b.f32(o.Amax)
	step, skip := b.i32(o.Step), b.i32(o.Skip)
	norm, coef := b.f32(o.GradNorm), b.f32(o.Coef)
	return func() {
		root := math.Sqrt(float64(sumSquares[0]))
		norm[0], coef[0] = float32(root), 1
		if o.Clip > 0 {
			coef[0] = float32(min(1, float64(o.Clip)/(root+1e-6)))
		}
		if isFinite(fp8.MaxAmax(sumSquares[0], fp8.Amax(amax))) {
			skip[0] = 0
			step[0]++
		} else {
			skip[0] = 1
		}
	}
}
