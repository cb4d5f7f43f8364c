package emu

import (
	"math"
	"slices"

	"octet/backend"
	"octet/backend/emu/cast"
	"octet/backend/emu/memory"
	"octet/backend/emu/simd"
)

// sumChunk is how many terms of a softmax's denominator are added in FP32; float64 adds
// the chunks, since a vocabulary may have a hundred thousand entries.
const sumChunk = 512

// lossPiece is how many logits are decoded at a time: a multiple of sumChunk that fits
// the first-level cache.
const lossPiece = 4 * sumChunk

var _ = implement((*binder).crossEntropy)

// crossEntropy gives a token whose target is not one of the Valid columns a loss and
// a gradient of NaN, so that the step reports it and is skipped. The host already
// checks ids.
//
// A row of logits is larger than the first-level cache. Three passes go through it
// piece by piece: for its maximum, for the exponentials, and for the gradient. With Stats the
// first one is not needed.
func (b *binder) crossEntropy(o *backend.CrossEntropy) func() {
	logits, targets, loss := b.matrix(o.Logits), b.integers(o.Targets), b.f32(o.Loss)
	words, lossScale, weights, correct := b.i32(o.Control), b.f32(o.LossScale), b.f32(o.Weights), b.i32(o.Correct)
	var gradient *cast.Output
	if o.DLogits != nil {
		gradient = b.output([]backend.Cast{{Out: o.DLogits}})
	}
	var invTokens float32
	valid, cols, nan := o.Valid, logits.Cols, float32(math.NaN())
	part, stats := b.part(o.Split, o.Control, cols), b.f32(o.Stats)
	b.pool.Reserve(lossPiece + cols)
	tokens := o.Logits.Rows()
	rows := b.pool.Rows(tokens, cols, func(worker, t int) {
		scratch := b.pool.Scratch[worker]
		buffer, grad := scratch[:lossPiece], scratch[lossPiece:lossPiece+cols]
		target, scale, weight := targets(t), float32(0), invTokens
		if weights != nil {
			weight *= weights[t]
		}
		if correct != nil {
			correct[t] = 0
		}
		own := part.valid(valid)
		switch {
		case target < 0:
			loss[t] = 0
			clear(grad[:own])
		case target >= valid:
			loss[t] = nan
			fillWith(grad[:own], nan)
		case stats != nil:
			all := joinStats(stats, t, tokens)
			exponentials(grad, &logits, t, own, all.top, buffer, min(t+1, tokens-1))
			loss[t] = float32(float64(all.top) - float64(all.target) + math.Log(all.sum))
			if correct != nil && all.first == target && loss[t] == loss[t] {
				correct[t] = 1
			}
			scale = float32(float64(weight) / all.sum)
			target -= part.first
		default:
			at := 0
			if correct != nil {
				at = target
			}
			before, top := largestLogit(&logits, t, 0, at, buffer), largestLogit(&logits, t, at, valid, buffer)
			first := before < top
			top = max(before, top)
			sum := exponentials(grad, &logits, t, valid, top, buffer, min(t+1, tokens-1))
			x := logits.Piece(buffer, t, target, 1)[0]
			loss[t] = float32(float64(top) - float64(x) + math.Log(sum))
			if correct != nil && first && x == top && loss[t] == loss[t] {
				correct[t] = 1
			}
			scale = float32(float64(weight) / sum)
		}
		if gradient == nil {
			return
		}
		clear(grad[own:])
		for from := 0; from < cols; from += lossPiece {
			piece := grad[from:min(from+lossPiece, cols)]
			simd.Scale(piece, scale)
			if at := target - from; at >= 0 && at < len(piece) {
				piece[at] -= weight
			}
			gradient.Store(worker, t, from, piece)
		}
	})
	run := func() {
		part.locate()
		invTokens = backend.ControlFrom(words).InvTokens
		if lossScale != nil {
			invTokens *= lossScale[0]
		}
		rows()
	}
	if gradient == nil {
		return run
	}
	return cast.Storing(run, gradient)
}

// valid returns how many columns of the part are valid, of so many of the whole.
func (p *part) valid(all int) int { return max(0, min(p.n, all-p.first)) }

// rowStats are what the softmax of a row needs to know of its logits, see backend.SoftmaxStats.
type rowStats struct {
	top, target float32
	sum         float64
	first       int
}

// joinStats joins the stats of a token's parts of the vocabulary.
func joinStats(stats []float32, token, tokens int) rowStats {
	all := rowStats{top: float32(math.Inf(-1)), target: float32(math.Inf(-1))}
	const words = backend.SoftmaxWords
	for at := token * words; at < len(stats); at += tokens * words {
		s := stats[at : at+words]
		if s[backend.SoftmaxTop] > all.top || at == token*words {
			all.top, all.first = s[backend.SoftmaxTop], int(s[backend.SoftmaxFirst])
		}
		all.target = max(all.target, s[backend.SoftmaxTarget])
	}
	if all.target == -math.MaxFloat32 { // no part has more, so its part has -∞
		all.target = float32(math.Inf(-1))
	}
	for at := token * words; at < len(stats); at += tokens * words {
		if s := stats[at : at+words]; s[backend.SoftmaxSum] != 0 { // else it may have no valid columns
			all.sum += float64(s[backend.SoftmaxSum]) * math.Exp(float64(s[backend.SoftmaxTop])-float64(all.top))
		}
	}
	return all
}

var _ = implement((*binder).softmaxStats)

func (b *binder) softmaxStats(o *backend.SoftmaxStats) func() {
	logits, targets, out := b.matrix(o.Logits), b.integers(o.Targets), b.f32(o.Out)
	tokens, cols := o.Logits.Rows(), logits.Cols
	part := b.part(o.Split, o.Control, cols)
	b.pool.Reserve(lossPiece + cols)
	rows := b.pool.Rows(tokens, cols, func(worker, t int) {
		scratch := b.pool.Scratch[worker]
		buffer, powers := scratch[:lossPiece], scratch[lossPiece:lossPiece+cols]
		own := part.valid(o.Valid)
		s := out[t*backend.SoftmaxWords:][:backend.SoftmaxWords]
		top := max(largestLogit(&logits, t, 0, own, buffer), -math.MaxFloat32)
		s[backend.SoftmaxTop], s[backend.SoftmaxSum] = top, 0
		s[backend.SoftmaxFirst] = float32(part.first + firstLogit(&logits, t, own, top, buffer))
		if own > 0 {
			s[backend.SoftmaxSum] = float32(exponentials(powers, &logits, t, own, top, buffer, min(t+1, tokens-1)))
		}
		s[backend.SoftmaxTarget] = -math.MaxFloat32
		if col, ok := part.local(targets(t)); ok && col < own {
			s[backend.SoftmaxTarget] = logits.Piece(buffer, t, col, 1)[0]
		}
	})
	return func() {
		part.locate()
		rows()
	}
}

// firstLogit returns the first of the first n columns of a row whose logit is x, 0 if there is none.
func firstLogit(logits *memory.Matrix, row, n int, x float32, buffer []float32) int {
	for from := 0; from < n; from += lossPiece {
		if i := slices.Index(logits.Piece(buffer, row, from, min(lossPiece, n-from)), x); i >= 0 {
			return from + i
		}
	}
	return 0
}

// largestLogit returns the largest of the logits [from, to) of a row.
func largestLogit(logits *memory.Matrix, row, from, to int, buffer []float32) float32 {
	top := float32(math.Inf(-1))
	for ; from < to; from += lossPiece {
		top = max(top, simd.Max(logits.Piece(buffer, row, from, min(lossPiece, to-from))))
	}
	return top
}

// exponentials sets dst to e^(logit − top) for the first n logits of a row and returns
// their sum. Meanwhile it prefetches row next, whose maximum is computed next.
func exponentials(dst []float32, logits *memory.Matrix, row, n int, top float32, buffer []float32, next int) float64 {
	var sum float64
	for from := 0; from < n; from += lossPiece {
		x := logits.Piece(buffer, row, from, min(lossPiece, n-from))
		for at := 0; at < len(x); at += sumChunk {
			chunk := x[at:min(at+sumChunk, len(x))]
			logits.Prefetch(next, from+at, len(chunk))
			sum += float64(simd.ExpSum(dst[from+at:], chunk, 1, top))
		}
	}
	return sum
}

var _ = implement((*binder).sum)

// sum adds in float64 and in one task: X is short, one loss per token.
func (b *binder) sum(o *backend.Sum) func() {
	x, out := b.f32(o.X), b.f32(o.Out)
	return func() {
		var total float64
		if o.Accumulate {
			total = float64(out[0])
		}
		for _, v := range x {
			total += float64(v)
		}
		out[0] = float32(total)
	}
}
