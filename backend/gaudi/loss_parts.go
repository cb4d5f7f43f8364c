package gaudi

import (
	"math"

	"octet/backend"
)

// logitsPart is what ops know of the logits of one part of the vocabulary.
type logitsPart struct {
	b        *builder
	x        value // {cols, rows}
	column   value // {cols, 1}: index of each column in the part
	first    value // index of the part's first column in the whole
	own      value // mask of the valid columns
	allValid bool  // on every rank
	target   value // {1, rows}: index in the part, which may not have it
	chosen   value // mask of the targets' columns
}

func (b *builder) logitsPart(logits, targets, control *backend.Tensor, valid int, split backend.Group) *logitsPart {
	p := &logitsPart{b: b, x: b.wide(logits), first: b.firstOf(split, control, logits.Cols())}
	cols := logits.Cols()
	p.column = b.arange(cols, uint64(cols), 1)
	if p.allValid = valid == cols*split.Size; !p.allValid {
		p.own = b.less(p.column, b.sub(b.constant(float32(valid)), p.first))
	}
	p.target = b.sub(b.targets(targets), p.first)
	p.chosen = b.equal(p.column, p.target)
	return p
}

// valid returns v in the valid columns, and otherwise in the rest, which may hold NaN or infinity.
func (p *logitsPart) valid(v, otherwise value) value {
	if p.allValid {
		return v
	}
	return p.b.where(p.own, v, otherwise)
}

var _ = implement((*builder).softmaxStats)

// softmaxStats has a sum of NaN where a valid logit is NaN, which the maximum may lose.
func (b *builder) softmaxStats(o *backend.SoftmaxStats) error {
	p := b.logitsPart(o.Logits, o.Targets, o.Control, o.Valid, o.Split)
	zero, least := b.constant(0), b.constant(-math.MaxFloat32)
	x, end := p.valid(p.x, least), b.constant(float32(o.Logits.Cols()))
	top := b.maximum(x, 0)
	sum := b.sum(p.valid(b.exp(b.sub(p.x, top)), zero))
	goal := b.where(b.within(p.target, o.Logits.Cols()), b.sum(b.where(p.chosen, p.x, zero)), least)
	first := b.minimum(b.where(b.equal(x, top), p.column, end))
	first = b.where(b.less(first, end), first, zero) // no column equals a maximum of NaN
	words := [backend.SoftmaxWords]value{
		backend.SoftmaxTop: top, backend.SoftmaxSum: sum, backend.SoftmaxTarget: goal,
		backend.SoftmaxFirst: b.add(first, p.first),
	}
	b.out(o.Out, b.concat(0, words[:]...))
	return nil
}

// lossOfParts is crossEntropy with the stats of all parts. It reads the logits for the gradient only.
func (b *builder) lossOfParts(o *backend.CrossEntropy) error {
	rows, zero := uint64(o.Logits.Rows()), b.constant(0)
	target := b.targets(o.Targets)
	ignored := b.less(target, zero)

	stats := b.reshape(b.in(o.Stats), backend.SoftmaxWords, rows, uint64(o.Split.Size))
	word := func(i uint64) value { return b.slice(stats, 0, i, i+1) } // {1, rows, parts}
	joined := func(kernel string, v value) value { return b.reshape(b.reduce(kernel, v, 2), 1, rows) }
	tops, sums := word(backend.SoftmaxTop), word(backend.SoftmaxSum)
	largest := b.maximum(tops, 2)
	// A part without valid columns has the sum 0. A sum of NaN stays.
	shares := b.where(b.equal(sums, zero), zero, b.mul(sums, b.exp(b.sub(tops, largest))))
	top, sum := b.reshape(largest, 1, rows), joined("reduce_sum", shares)
	goal, least := joined("reduce_max", word(backend.SoftmaxTarget)), b.constant(-math.MaxFloat32)
	goal = b.where(b.equal(goal, least), b.constant(float32(math.Inf(-1))), goal) // no part has more, so its part has -∞
	loss := b.sub(b.log(sum), b.sub(goal, top))
	b.out(o.Loss, b.where(ignored, zero, loss))
	if o.Correct != nil {
		none := b.constant(1 << 24) // above every column
		first := joined("reduce_min", b.where(b.equal(tops, largest), word(backend.SoftmaxFirst), none))
		b.storeCorrect(o, first, target, loss)
	}
	if o.DLogits != nil {
		p := b.logitsPart(o.Logits, o.Targets, o.Control, o.Valid, o.Split)
		e := p.valid(b.exp(b.sub(p.x, top)), zero)
		b.storeLossGradient(o, e, sum, p.chosen, ignored, p.valid)
	}
	return nil
}
