package emu

import (
	"math"

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
// piece by piece: for its maximum, for the exponentials, and for the gradient.
func (b *binder) crossEntropy(o *backend.CrossEntropy) func() {
	logits, targets, loss := b.matrix(o.Logits), b.integers(o.Targets), b.f32(o.Loss)
	words, lossScale, weights, correct := b.i32(o.Control), b.f32(o.LossScale), b.f32(o.Weights), b.i32(o.Correct)
	var gradient *cast.Output
	if o.DLogits != nil {
		gradient = b.output([]backend.Cast{{Out: o.DLogits}})
	}
	var invTokens float32
	valid, cols, nan := o.Valid, logits.Cols, float32(math.NaN())
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
		switch {
		case target < 0:
			loss[t] = 0
			clear(grad[:valid])
		case target >= valid:
			loss[t] = nan
			fillWith(grad[:valid], nan)
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
		clear(grad[valid:])
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
