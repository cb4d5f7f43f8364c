package gaudi

import (
	"fmt"
	"math"

	"octet/backend"
	"octet/csrc/libsynapse"
	"octet/fp8"
)

var _ = implementOp(row[*backend.SumSquares]{build: (*builder).sumSquares, lower: lowering.sumSquares, ownUnit: true})

func (b *builder) sumSquares(o *backend.SumSquares) error {
	var total value
	for i, t := range o.X {
		x := b.f32(t)
		part := b.overAll("reduce_sum", b.mul(x, x))
		if i == 0 {
			total = part
		} else {
			total = b.add(total, part)
		}
	}
	if o.InverseNorm {
		total = b.div(b.constant(1), b.sqrt(b.where(b.equal(total, b.constant(0)), b.constant(1), total)))
	}
	b.out(o.Out, total)
	return nil
}

func (l lowering) sumSquares(o *backend.SumSquares) {
	if len(o.X) == 1 || o.InverseNorm {
		l.add(o)
		return
	}
	parts := l.rewriter.Temp(o.Out.Name+".parts", fp8.F32, len(o.X))
	for i, x := range o.X {
		l.add(&backend.SumSquares{X: []*backend.Tensor{x}, Out: parts.Slice(fmt.Sprintf("%s.%d", parts.Name, i), i, 1)})
	}
	l.add(&backend.Sum{X: parts, Out: o.Out})
}

var _ = implement((*builder).stepGate)

func (b *builder) stepGate(o *backend.StepGate) error {
	one, zero := b.constant(1), b.constant(0)
	squares := b.in(o.SumSquares)
	norm, inverse := b.sqrt(squares), one
	if o.LossScale != nil {
		inverse = b.div(one, b.in(o.LossScale))
		norm = b.mul(norm, inverse)
	}
	b.out(o.GradNorm, norm)
	coef := one
	if o.Clip > 0 {
		coef = b.div(b.constant(o.Clip), b.add(norm, b.constant(1e-6)))
		coef = b.where(b.greater(coef, one), one, coef) // NaN stays
	}
	if o.LossScale != nil {
		coef = b.mul(coef, inverse)
	}
	b.out(o.Coef, coef)

	bad := b.where(b.isFinite(squares), zero, one)
	if o.Amax != nil {
		badAmaxes := b.overAll("reduce_max", b.where(b.isFinite(b.vector(o.Amax)), zero, one))
		bad = b.max(bad, badAmaxes)
	}
	b.out(o.Skip, b.cast(bad, libsynapse.I32))
	b.out(o.Step, b.add(b.in(o.Step), b.cast(b.sub(one, bad), libsynapse.I32)))
	if o.LossScale != nil {
		b.nextLossScale(o, bad)
	}
	return nil
}

// nextLossScale stores LossScale and GoodSteps for the next step; bad is 1 if this one is
// skipped, else 0.
func (b *builder) nextLossScale(o *backend.StepGate, bad value) {
	one, zero := b.constant(1), b.constant(0)
	scale := b.in(o.LossScale)
	good := b.add(b.cast(b.in(o.GoodSteps), libsynapse.F32), one) // exact: it is at most GrowthSteps
	skipped, grows := b.greater(bad, zero), b.equal(good, b.constant(float32(o.GrowthSteps)))
	grown := b.min(b.mul(scale, b.constant(2)), b.constant(backend.MaxLossScale))
	halved := b.max(b.mul(scale, b.constant(0.5)), b.constant(backend.MinLossScale))
	b.out(o.LossScale, b.where(skipped, halved, b.where(grows, grown, scale)))
	b.out(o.GoodSteps, b.cast(b.where(skipped, zero, b.where(grows, zero, good)), libsynapse.I32))
}

var _ = implementOp(row[*backend.AdamW]{build: (*builder).adamW, lower: lowering.adamW, transfers: memory.broadcastCopies, ownUnit: true})

// adamW updates a tensor in place: the same elementwise kernels read and write every
// element, and Skip selects the old or the new value at the end. Lowering has split the
// lists, so each has one tensor.
func (b *builder) adamW(o *backend.AdamW) error {
	u := b.adamUpdate(o.Grad[0], o.Master[0], o.M1[0], o.M2[0], o.Step, o.Coef, adamRule{o.Beta1, o.Beta2, o.Eps, o.L2, o.EpsForm})
	one, lr := b.constant(1), b.word(o.Control, lrWord)
	if o.ClipRMS > 0 {
		over := b.div(b.sqrt(b.in(o.MeanSquares)), b.constant(o.ClipRMS))
		lr = b.div(lr, b.where(b.greater(one, over), one, over)) // NaN stays
	}
	decay := b.sub(one, b.mul(lr, b.constant(o.WeightDecay)))
	m, v := u.m, u.v
	p := b.sub(b.mul(u.master, decay), b.mul(b.mul(lr, u.rate), u.direction))

	if o.AmaxOnly { // of all three, even if unused: every node needs a reader
		var amaxes []value
		for _, v := range []value{p, m, v} {
			amaxes = append(amaxes, b.overAll("reduce_max", b.abs(v)))
		}
		b.out(o.Amaxes, b.concat(0, amaxes...))
		return nil
	}
	skip := b.set(o.Skip)
	for k, f := range []struct {
		t     *backend.Tensor
		v     value
		floor bool
	}{{o.Master[0], p, false}, {o.M1[0], m, false}, {o.M2[0], v, o.FloorV}} {
		if f.t.Block != backend.PerTensor {
			return b.unsupported("%s is of granularity %s: Gaudi takes per-tensor scales only", f.t, f.t.Block)
		}
		var amax value
		switch {
		case f.t.Scale == nil:
		case o.AmaxGiven:
			amax = b.element(b.in(o.Amaxes), k)
		default:
			// NaN or infinity here implies a NaN or infinite gradient, for which skip is
			// set.
			amax = b.overAll("reduce_max", b.abs(f.v))
		}
		b.storeScaled(o, f.t, f.v, amax, f.floor, skip)
	}
	return nil
}

// adamRule is the coefficients of AdamW.
type adamRule struct {
	beta1, beta2, eps, l2 float32
	form                  backend.EpsForm
}

// adamUpdate is an update of AdamW: the learning rate times rate times direction.
type adamUpdate struct {
	grad, master    value // after clipping and L2; before the update
	oldM, oldV      value
	m, v            value // new
	direction, rate value
	second          value // √(1 − β2ᵗ)
}

func (b *builder) adamUpdate(grad, master, m1, m2, step, coef *backend.Tensor, r adamRule) (u adamUpdate) {
	corrections := b.biasCorrections(b.in(step), float64(r.beta1), float64(r.beta2)) // 1 − β1ᵗ, 1 − β2ᵗ
	u.rate = b.div(b.constant(1), b.element(corrections, 0))
	u.second = b.sqrt(b.element(corrections, 1))
	sizes := sizesOf(grad)
	read := func(t *backend.Tensor) value { return b.reshape(b.f32(t), sizes...) }
	u.master = read(master)
	u.grad = b.mul(read(grad), b.in(coef))
	if r.l2 != 0 {
		u.grad = b.add(u.grad, b.mul(b.constant(r.l2), u.master))
	}
	u.oldM, u.oldV = read(m1), read(m2)
	u.m = b.ema(r.beta1, u.oldM, u.grad)
	u.v = b.ema(r.beta2, u.oldV, b.mul(u.grad, u.grad))
	root := b.sqrt(u.v)
	if r.form == backend.EpsCorrected {
		root = b.div(root, u.second)
	} else {
		u.rate = b.mul(u.rate, u.second)
	}
	u.direction = b.div(u.m, b.add(root, b.constant(r.eps)))
	return u
}

var _ = implementOp(row[*backend.UpdateStats]{build: (*builder).updateStats, lower: lowering.updateStats, ownUnit: true})

// updateStats has one tensor, as adamW.
func (b *builder) updateStats(o *backend.UpdateStats) error {
	for _, t := range []*backend.Tensor{o.M1[0], o.M2[0]} {
		if t.Block != backend.PerTensor {
			return b.unsupported("%s is of granularity %s: Gaudi takes per-tensor scales only", t, t.Block)
		}
	}
	u := b.adamUpdate(o.Grad[0], o.Master[0], o.M1[0], o.M2[0], o.Step, o.Coef, adamRule{o.Beta1, o.Beta2, o.Eps, o.L2, o.EpsForm})
	least, debiased := b.constant(o.Eps*o.Eps), b.div(u.v, b.mul(u.second, u.second))
	squares := b.div(b.mul(u.grad, u.grad), b.where(b.greater(least, debiased), least, debiased))
	n := float64(o.Grad[0].Elems()) * float64(o.Parts)
	share := func(x value) value { return b.mul(b.overAll("reduce_sum", x), b.constant(float32(1/n))) }
	largest := b.largest(b.mul(u.rate, u.direction))
	skip, zero := b.set(o.Skip), b.constant(0)
	moved := b.where(b.equal(u.oldM, zero), zero, b.constant(1)) // NaN counts, as elsewhere
	zeroV := b.where(b.equal(u.oldV, zero), moved, zero)
	b.out(o.MeanSquares, b.where(skip, zero, share(squares)))
	b.out(o.Largest, b.where(skip, zero, largest))
	b.out(o.ZeroV, b.where(skip, zero, share(zeroV)))
	return nil
}

func (l lowering) updateStats(o *backend.UpdateStats) {
	for i, t := range o.Master {
		one := *o
		one.Grad, one.Master, one.M1, one.M2 = o.Grad[i:i+1], o.Master[i:i+1], o.M1[i:i+1], o.M2[i:i+1]
		one.MeanSquares = o.MeanSquares.Slice(t.Name+".mean_squares", i, 1)
		one.Largest = o.Largest.Slice(t.Name+".largest", i, 1)
		one.ZeroV = o.ZeroV.Slice(t.Name+".zero_v", i, 1)
		l.add(&one)
	}
}

func (l lowering) adamW(o *backend.AdamW) {
	for i, t := range o.Master {
		one := *o
		one.Grad, one.Master, one.M1, one.M2 = o.Grad[i:i+1], o.Master[i:i+1], o.M1[i:i+1], o.M2[i:i+1]
		one.MasterScale, one.M1Scale, one.M2Scale = o.MasterScale[i:i+1], o.M1Scale[i:i+1], o.M2Scale[i:i+1]
		if o.MeanSquares != nil {
			one.MeanSquares = o.MeanSquares.Slice(t.Name+".mean_squares", i, 1)
		}
		if o.AmaxOnly || o.AmaxGiven {
			one.Amaxes = o.Amaxes.Slice(t.Name+".amaxes", 3*i, 3)
		} else {
			one.Amaxes = l.rewriter.Temp(t.Name+".amaxes", fp8.F32, 3)
		}
		l.add(&one)
	}
}

var _ = implementOp(row[*backend.LinearUpdate]{build: (*builder).linearUpdate, ownUnit: true})

func (b *builder) linearUpdate(o *backend.LinearUpdate) error {
	switch {
	case o.State.DType == fp8.INT8:
		return b.unsupported("the format int8 of a momentum")
	case o.State.Block != backend.PerTensor:
		return b.unsupported("%s is of granularity %s: Gaudi takes per-tensor scales only", o.State, o.State.Block)
	}
	lr := b.word(o.Control, lrWord)
	keep := b.sub(b.constant(o.Keep), b.mul(lr, b.constant(o.Decay)))
	gain := b.sub(b.constant(o.Gain), b.mul(lr, b.constant(o.Rate)))
	if o.Coef != nil {
		gain = b.mul(gain, b.in(o.Coef))
	}
	sizes, skip := sizesOf(o.State), b.set(o.Skip)
	added := b.mul(gain, b.reshape(b.f32(o.X), sizes...))
	state := b.add(b.mul(keep, b.reshape(b.f32(o.State), sizes...)), added)
	if o.Next != nil {
		next := b.add(b.mul(keep, state), added)
		b.out(o.Next, b.where(skip, b.constant(0), next))
	}
	var amax value
	if o.State.Scale != nil {
		amax = b.overAll("reduce_max", b.abs(state)) // NaN implies skip, as in adamW
	}
	b.storeScaled(&backend.AdamW{Rounding: o.Rounding, Pow2: o.Pow2}, o.State, state, amax, false, skip)
	return nil
}

// lrWord is the word of step.control that holds the learning rate.
const lrWord = 6

// ema returns β·x + (1−β)·y.
func (b *builder) ema(beta float32, x, y value) value {
	return b.add(b.mul(b.constant(beta), x), b.mul(b.constant(float32(1-float64(beta))), y))
}

// element returns element i of a vector as a scalar.
func (b *builder) element(v value, i int) value {
	return b.reshape(b.slice(v, 0, uint64(i), uint64(i+1)), 1)
}

// biasCorrections returns 1 − βᵗ for each β, {len(betas), 1}, of a step t, I32, clamped
// to 2^24−1.
//
// 1 − pow(β, t) would lose all significant bits for β = 0.999 and t = 1, and the last
// bits of the device's pow are not documented. So a table holds u = 1 − βⁿ for each
// base-256 digit of t. Two of them combine as u + v − u·v, the complement of the product
// of their powers, without cancellation.
func (b *builder) biasCorrections(t value, betas ...float64) value {
	n := uint64(len(betas))
	table := make([]float32, 0, digitBase*digits*len(betas))
	for d := range digits {
		unit := math.Pow(digitBase, float64(d))
		for _, beta := range betas {
			table = append(table, 0) // digit 0, also for β = 0
			for digit := 1; digit < digitBase; digit++ {
				table = append(table, float32(-math.Expm1(float64(digit)*unit*math.Log(beta))))
			}
		}
	}
	digit := b.digits(b.cast(t, libsynapse.F32))
	chosen := b.equal(b.arange(digitBase, digitBase, 1, 1), digit) // {digitBase, 1, digits}
	found := b.sum(b.where(chosen, b.table(table, digitBase, n, digits), b.constant(0)))

	u := b.slice(found, 2, 0, 1)
	for d := uint64(1); d < digits; d++ {
		v := b.slice(found, 2, d, d+1)
		u = b.sub(b.add(u, v), b.mul(u, v))
	}
	return b.reshape(u, n, 1)
}

// rescale stores the new values v of an optimizer tensor unless skip is set, with the
// scale of an amax if the tensor has a scale. With floor, positive values do not
// underflow to 0.
func (b *builder) storeScaled(o *backend.AdamW, t *backend.Tensor, v, amax value, floor bool, skip value) {
	typ := b.typeOf(t.DType)
	rounding := roundingOf(o.Rounding)
	if t.Scale == nil {
		b.storeUnless(t, skip, b.castRounded(v, typ, rounding))
		return
	}
	scale, inv, ok := b.scaleFor(amax, t.DType.Max(), o.Pow2)
	old := b.in(t.Scale)
	b.out(t.Scale, b.where(skip, old, b.where(ok, inv, old)))

	scaled := b.mul(v, scale)
	if floor {
		// Values below the smallest positive FP8 or F16 value would round to it or to 0.
		zero, smallest := b.constant(0), b.constant(t.DType.Float32(1))
		scaled = b.where(b.greater(v, zero), b.max(scaled, smallest), scaled)
	}
	if t.DType.IsQuantized() {
		codes := b.node("convert_to_fp8_f32", libsynapse.CastParams(rounding), typ, scaled.sizes, scaled)
		b.storeUnless(t, skip, b.bits(codes, libsynapse.I8))
	} else {
		b.storeUnless(t, skip, b.castRounded(scaled, typ, rounding))
	}
}

// storeUnless stores new contents in t, or keeps the old ones where skip is set. FP8
// contents are selected as bytes, so that they are not rounded again.
func (b *builder) storeUnless(t *backend.Tensor, skip, contents value) {
	old := b.reshape(b.inAs(t, contents.typ), contents.sizes...)
	b.outAs(t, b.where(skip, old, contents))
}
