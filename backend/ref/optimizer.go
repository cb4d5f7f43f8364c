package ref

import (
	"math"

	"octet/backend"
	"octet/fp8"
)

var _ = implement((*Backend).sumSquares)

func (b *Backend) sumSquares(o *backend.SumSquares) {
	total := 0.0
	for _, t := range o.X {
		for _, x := range b.read(t) {
			total += x * x
		}
	}
	if o.InverseNorm {
		if total == 0 {
			total = 1
		}
		total = 1 / math.Sqrt(total)
	}
	b.store(o.Out, []float64{total})
}

var _ = implement((*Backend).stepGate)

func (b *Backend) stepGate(o *backend.StepGate) {
	squares := b.read(o.SumSquares)[0]
	lossScale := b.readOr(o.LossScale, 1, 1)[0]
	norm, coef := math.Sqrt(squares)/lossScale, 1.0
	if o.Clip > 0 {
		coef = min(1, float64(o.Clip)/(norm+1e-6))
	}
	skip, steps := 0.0, 1.0
	for _, x := range append(b.readOr(o.Amax, 0, 0), squares) {
		if !finite(x) {
			skip, steps = 1, 0
		}
	}
	b.store(o.GradNorm, []float64{norm})
	b.store(o.Coef, []float64{coef / lossScale})
	b.store(o.Skip, []float64{skip})
	b.store(o.Step, []float64{b.read(o.Step)[0] + steps})
	if o.LossScale == nil {
		return
	}
	good := b.read(o.GoodSteps)[0] + 1
	switch {
	case skip == 1:
		lossScale, good = max(lossScale/2, backend.MinLossScale), 0
	case good == float64(o.GrowthSteps):
		lossScale, good = min(2*lossScale, backend.MaxLossScale), 0
	}
	b.store(o.LossScale, []float64{lossScale})
	b.store(o.GoodSteps, []float64{good})
}

var _ = implement((*Backend).adamW)

func (b *Backend) adamW(o *backend.AdamW) {
	if b.set(o.Skip) {
		return
	}
	control := b.control(o.Control)
	rule := b.adamRule(o.Coef, o.Step, o.Beta1, o.Beta2, o.Eps, o.L2, o.EpsForm)
	squares := b.readOr(o.MeanSquares, len(o.Grad), 0)

	var amaxes []float64
	if o.AmaxGiven {
		amaxes = b.read(o.Amaxes)
	} else {
		amaxes = make([]float64, 3*len(o.Grad))
	}
	for i := range o.Grad {
		grad, p, m, v := b.read(o.Grad[i]), b.read(o.Master[i]), b.read(o.M1[i]), b.read(o.M2[i])
		lr := float64(control.LR)
		if o.ClipRMS > 0 {
			lr /= math.Max(1, math.Sqrt(squares[i])/float64(o.ClipRMS))
		}
		for j := range grad {
			var update float64
			_, m[j], v[j], update = rule.apply(grad[j], p[j], m[j], v[j])
			p[j] = p[j]*(1-lr*float64(o.WeightDecay)) - lr*update
		}
		for k, s := range []struct {
			t      *backend.Tensor
			values []float64
			floor  bool
		}{{o.Master[i], p, false}, {o.M1[i], m, false}, {o.M2[i], v, o.FloorV}} {
			amax := &amaxes[3*i+k]
			if s.t.Scale != nil && s.t.Block == backend.PerTensor && !o.AmaxGiven {
				for _, x := range s.values {
					*amax = maxAmax(*amax, b.fp32(x))
				}
			}
			if !o.AmaxOnly {
				b.rescale(s.t, s.values, *amax, control, o, s.floor)
			}
		}
	}
	if !o.AmaxGiven {
		b.store(o.Amaxes, amaxes)
	}
}

var _ = implement((*Backend).linearUpdate)

func (b *Backend) linearUpdate(o *backend.LinearUpdate) {
	x, state, next := b.read(o.X), b.read(o.State), make([]float64, o.X.Elems())
	if !b.set(o.Skip) {
		control := b.control(o.Control)
		lr := float64(control.LR)
		keep := float64(o.Keep) - lr*float64(o.Decay)
		gain := b.readOr(o.Coef, 1, 1)[0] * (float64(o.Gain) - lr*float64(o.Rate))
		amax := 0.0
		for i := range x {
			state[i] = keep*state[i] + gain*x[i]
			next[i] = keep*state[i] + gain*x[i]
			amax = maxAmax(amax, b.fp32(state[i]))
		}
		b.rescale(o.State, state, amax, control, &backend.AdamW{Rounding: o.Rounding, Pow2: o.Pow2}, false)
	}
	if o.Next != nil {
		b.store(o.Next, next)
	}
}

// rescale stores values in an optimizer state t and recomputes t's scales. floor stores
// positive values that would underflow as the smallest positive code.
func (b *Backend) rescale(t *backend.Tensor, values []float64, amax float64, control backend.Control, o *backend.AdamW, floor bool) {
	scale := func(int) float64 { return 1 }
	if t.Expand {
		blocks := b.stored(t.Scale)
		b.expand(t, values, blocks)
		b.store(t.Scale, blocks)
	} else {
		scale = b.scalesFor(t, values, amax, o.Pow2)
	}
	key := fp8.StreamKey(control.Seed, control.Step, fp8.NameKey(t.Name))
	first := uint64(0) // index of the first value's random bits
	if o.Shard {
		first = uint64(o.Split.Index(int(control.Rank))) * uint64(len(values))
	}
	codes, overflow := make([]float64, len(values)), backend.Cast{Out: t}.Overflow()
	for i, x := range values {
		codes[i] = b.round(t.DType, b.fp32(b.fp32(x)*scale(i)), overflow, o.Rounding, fp8.Random(key, first+uint64(i)))
		if floor && codes[i] == 0 && b.fp32(x) > 0 {
			codes[i] = float64(t.DType.Float32(1))
		}
	}
	b.put(t, codes)
}

// scalesFor stores the scale_inv of new values of t, if t has any: one for amax, or one for
// each block. It returns the scale of element i.
func (b *Backend) scalesFor(t *backend.Tensor, values []float64, amax float64, pow2 bool) func(i int) float64 {
	amaxes := []float64{amax}
	if t.Block != backend.PerTensor {
		amaxes = make([]float64, t.Scale.Elems())
		for i, x := range values {
			block := t.ScaleIndex(i)
			amaxes[block] = maxAmax(amaxes[block], b.fp32(x))
		}
	}
	scales := make([]float64, len(amaxes))
	if t.Scale == nil {
		scales[0] = 1
	} else {
		inverse := b.read(t.Scale)
		for i, amax := range amaxes {
			fresh, ok := fp8.ScaleFor(float32(amax), t.DType.Max(), pow2)
			if scales[i] = float64(fresh); ok {
				inverse[i] = 1 / float64(fresh)
			} else {
				scales[i] = b.fp32(1 / inverse[i])
			}
		}
		b.store(t.Scale, inverse)
	}
	return func(i int) float64 { return scales[t.ScaleIndex(i)] }
}
