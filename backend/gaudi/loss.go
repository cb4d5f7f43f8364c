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
	x := b.wide(o.Logits)
	cols, rows := x.sizes[0], x.sizes[1]
	zero := b.constant(0)
	column := b.arange(int(cols), cols, 1)
	valid := func(v, otherwise value) value {
		if uint64(o.Valid) == cols {
			return v
		}
		return b.where(b.less(column, b.constant(float32(o.Valid))), v, otherwise)
	}
	target := b.reshape(b.cast(b.in(o.Targets), libsynapse.F32), 1, rows) // exact: a vocabulary is below 2^24
	ignored, chosen := b.less(target, zero), b.equal(column, target)

	// The sum keeps a NaN that the maximum loses.
	top := b.maximum(valid(x, b.constant(-math.MaxFloat32)), 0)
	shifted := b.sub(x, top)
	e := valid(b.exp(shifted), zero)
	sum := b.sum(e)
	loss := b.sub(b.log(sum), b.sum(b.where(chosen, shifted, zero)))
	b.out(o.Loss, b.where(ignored, zero, loss))
	if o.Correct != nil {
		first := b.minimum(b.where(b.equal(valid(shifted, b.constant(-1)), zero), column, b.constant(float32(cols))), 0)
		correct := b.where(b.equal(first, target), b.constant(1), zero)
		b.out(o.Correct, b.where(b.isNaN(loss), zero, correct))
	}
	if o.DLogits == nil {
		return nil
	}
	p := b.mul(e, b.div(b.constant(1), sum))
	slope := b.sub(p, b.where(chosen, b.constant(1), zero))
	grad := b.mul(slope, b.word(o.Control, invTokensWord))
	if o.LossScale != nil {
		grad = b.mul(grad, b.in(o.LossScale))
	}
	if o.Weights != nil {
		grad = b.mul(grad, b.reshape(b.in(o.Weights), 1, rows))
	}
	b.out(o.DLogits, valid(b.where(ignored, zero, grad), zero))
	return nil
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
