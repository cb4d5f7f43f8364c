package gaudi

import (
	"math"

	"octet/backend"
	"octet/csrc/libsynapse"
)

var _ = implement((*builder).crossEntropy)

// crossEntropy writes elementwise arithmetic around two reductions. SynapseAI's own
// kernel differs in ignored rows, padding and the scaling of the gradient.
//
// Padding columns and ignored rows are masked by where and not multiplied by 0, because
// they may hold NaN or infinity.
func (b *builder) crossEntropy(o *backend.CrossEntropy) error {
	if o.Stats != nil {
		return b.lossOfParts(o)
	}
	x := b.wide(o.Logits)
	cols := x.sizes[0]
	zero := b.constant(0)
	column := b.arange(int(cols), cols, 1)
	valid := func(v, otherwise value) value {
		if uint64(o.Valid) == cols {
			return v
		}
		return b.where(b.less(column, b.constant(float32(o.Valid))), v, otherwise)
	}
	target := b.targets(o.Targets)
	ignored, chosen := b.less(target, zero), b.equal(column, target)

	// The sum keeps a NaN that the maximum loses.
	top := b.maximum(valid(x, b.constant(-math.MaxFloat32)), 0)
	shifted := b.sub(x, top)
	e := valid(b.exp(shifted), zero)
	sum := b.sum(e)
	loss := b.sub(b.log(sum), b.sum(b.where(chosen, shifted, zero)))
	b.out(o.Loss, b.where(ignored, zero, loss))
	if o.Correct != nil {
		first := b.minimum(b.where(b.equal(valid(shifted, b.constant(-1)), zero), column, b.constant(float32(cols))))
		b.storeCorrect(o, first, target, loss)
	}
	if o.DLogits != nil {
		b.storeLossGradient(o, e, sum, chosen, ignored, valid)
	}
	return nil
}

// targets returns the targets of rows as {1, rows}, exact in F32: a vocabulary is below 2^24.
func (b *builder) targets(t *backend.Tensor) value {
	return b.reshape(b.cast(b.in(t), libsynapse.F32), 1, uint64(t.Elems()))
}

// storeCorrect stores which targets are the first column of the largest logit.
func (b *builder) storeCorrect(o *backend.CrossEntropy, first, target, loss value) {
	correct := b.where(b.equal(first, target), b.constant(1), b.constant(0))
	b.out(o.Correct, b.where(b.isNaN(loss), b.constant(0), correct))
}

// storeLossGradient stores the gradient of logits from their exponentials e, which have this sum in
// the whole vocabulary. chosen marks the targets, ignored the rows without.
func (b *builder) storeLossGradient(o *backend.CrossEntropy, e, sum, chosen, ignored value, valid func(v, otherwise value) value) {
	zero := b.constant(0)
	p := b.mul(e, b.div(b.constant(1), sum))
	slope := b.sub(p, b.where(chosen, b.constant(1), zero))
	grad := b.mul(slope, b.word(o.Control, invTokensWord))
	if o.LossScale != nil {
		grad = b.mul(grad, b.in(o.LossScale))
	}
	if o.Weights != nil {
		grad = b.mul(grad, b.reshape(b.in(o.Weights), 1, uint64(o.Weights.Elems())))
	}
	b.out(o.DLogits, valid(b.where(ignored, zero, grad), zero))
}

// invTokensWord is the word of step.control that holds 1 / valid tokens.
const invTokensWord = 7

var _ = implement((*builder).total)

// total stores the sum of a vector.
func (b *builder) total(o *backend.Sum) error {
	sum := b.overAll("reduce_sum", b.f32(o.X))
	if o.Accumulate {
		sum = b.add(b.in(o.Out), sum)
	}
	b.out(o.Out, sum)
	return nil
}
