package emu

import (
	"math"

	"octet/backend"
	"octet/backend/emu/memory"
	"octet/backend/emu/optimizer"
	"octet/fp8"
)

var _ = implementOp(row{blockScaled: []string{"M1", "M2"}, keepsExtents: true}, func(b *binder, _ *backend.Node, o *backend.AdamW) (kernel, error) {
	return compute(b.adamW(o)), nil
})

func (b *binder) adamW(o *backend.AdamW) func() {
	a := &optimizer.AdamW{
		Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Eps, EpsForm: o.EpsForm, WeightDecay: o.WeightDecay, L2: o.L2, ClipRMS: o.ClipRMS,
		Rounding: o.Rounding, Pow2: o.Pow2, FloorV: o.FloorV,
		AmaxOnly: o.AmaxOnly, AmaxGiven: o.AmaxGiven, Shard: o.Shard, Split: o.Split,
		Control: b.i32(o.Control), Step: b.i32(o.Step), Skip: b.i32(o.Skip),
		Coef: b.f32(o.Coef), Amaxes: b.f32(o.Amaxes), MeanSquares: b.f32(o.MeanSquares),
		Params: b.params(o.Grad, o.Master, o.M1, o.M2),
	}
	return a.Bind(b.pool)
}

// params returns the parameters of AdamW's lists.
func (b *binder) params(grad, master, m1, m2 []*backend.Tensor) (list []optimizer.Param) {
	for i, g := range grad {
		p := optimizer.Param{Grad: b.matrix(g), Extents: b.extents[g]}
		for j, t := range []*backend.Tensor{master[i], m1[i], m2[i]} {
			p.States[j] = b.state(t)
		}
		list = append(list, p)
	}
	return list
}

// state returns a master weight or a moment.
func (b *binder) state(t *backend.Tensor) optimizer.State {
	s := optimizer.State{Matrix: b.matrix(t), Block: t.Block.Cols, Expand: t.Expand, Stream: fp8.NameKey(t.Name), Extents: b.extents[t]}
	s.Scale = b.f32(t.Scale) // all of them, unlike matrix
	return s
}

var _ = implementOp(row{blockScaled: []string{"M1", "M2"}, keepsExtents: true}, func(b *binder, _ *backend.Node, o *backend.UpdateStats) (kernel, error) {
	return compute(b.updateStats(o)), nil
})

func (b *binder) updateStats(o *backend.UpdateStats) func() {
	return optimizer.Stats{
		Rule: optimizer.AdamW{
			Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Eps, EpsForm: o.EpsForm, L2: o.L2,
			Step: b.i32(o.Step), Skip: b.i32(o.Skip), Coef: b.f32(o.Coef),
			Params: b.params(o.Grad, o.Master, o.M1, o.M2),
		},
		MeanSquares: b.f32(o.MeanSquares), Largest: b.f32(o.Largest), ZeroV: b.f32(o.ZeroV), Parts: o.Parts,
	}.Bind(b.pool)
}

var _ = implement((*binder).linearUpdate, "State")

func (b *binder) linearUpdate(o *backend.LinearUpdate) func() {
	return optimizer.Linear{
		X: b.matrix(o.X), Next: b.f32(o.Next),
		State: b.state(o.State),
		Keep:  o.Keep, Decay: o.Decay, Gain: o.Gain, Rate: o.Rate, Rounding: o.Rounding, Pow2: o.Pow2,
		Control: b.i32(o.Control), Skip: b.i32(o.Skip), Coef: b.f32(o.Coef),
	}.Bind(b.pool)
}

var _ = implement((*binder).sumSquares)

func (b *binder) sumSquares(o *backend.SumSquares) func() {
	var list []memory.Matrix
	var extents []*optimizer.Extents
	for _, x := range o.X {
		list, extents = append(list, b.matrix(x)), append(extents, b.extents[x])
	}
	out := b.f32(o.Out)
	run := optimizer.SumSquares(b.pool, list, extents, out)
	if !o.InverseNorm {
		return run
	}
	return func() {
		run()
		if out[0] == 0 {
			out[0] = 1
		}
		out[0] = float32(1 / math.Sqrt(float64(out[0])))
	}
}

var _ = implement((*binder).stepGate)

// stepGate computes in float64. For a skipped step it records the norm unchanged; the
// coefficient is then unused.
func (b *binder) stepGate(o *backend.StepGate) func() {
	sumSquares, amax := b.f32(o.SumSquares), b.f32(o.Amax)
	step, skip := b.i32(o.Step), b.i32(o.Skip)
	norm, coef := b.f32(o.GradNorm), b.f32(o.Coef)
	lossScale, good := b.f32(o.LossScale), b.i32(o.GoodSteps)
	return func() {
		scale, clip := 1.0, 1.0
		if lossScale != nil {
			scale = float64(lossScale[0])
		}
		root := math.Sqrt(float64(sumSquares[0])) / scale
		if o.Clip > 0 {
			clip = min(1, float64(o.Clip)/(root+1e-6))
		}
		norm[0], coef[0] = float32(root), float32(clip/scale)
		if fp8.MaxAmax(sumSquares[0], fp8.Amax(amax)) <= math.MaxFloat32 {
			skip[0] = 0
			step[0]++
		} else {
			skip[0] = 1
		}
		if lossScale == nil {
			return
		}
		good[0]++
		switch {
		case skip[0] != 0:
			lossScale[0], good[0] = max(lossScale[0]/2, backend.MinLossScale), 0
		case int(good[0]) == o.GrowthSteps:
			lossScale[0], good[0] = min(2*lossScale[0], backend.MaxLossScale), 0
		}
	}
}
