package emu

import (
	"math"

	"octet/backend"
)

// sumChunk is how many terms of a softmax's denominator are added in FP32
// before the sum goes on in float64: a vocabulary has a hundred thousand.
const sumChunk = 512

// crossEntropy gives a token whose target is not one of the Valid columns a
// loss and a gradient of NaN, so that the step shows it and is skipped; the
// host checks ids before they get here.
func (b *binder) crossEntropy(o *backend.CrossEntropy) func() {
	logits, targets, loss := b.rows(o.Logits), b.integers(o.Targets), b.f32(o.Loss)
	words := b.i32(o.Control)
	var gradient *emitter
	if o.DLogits != nil {
		gradient = b.emitter([]backend.Cast{{Out: o.DLogits}}, logits.cols)
	}
	var invTokens float32
	b.pool.reserve(logits.cols)
	tokens := o.Logits.Rows()
	tasks, height := rowTasks(tokens, logits.cols)
	task := func(worker, task int) {
		buffer := b.pool.scratch[worker][:logits.cols]
		for t := task * height; t < min(tokens, (task+1)*height); t++ {
			target := targets.at(t)
			if target < 0 {
				loss[t] = 0
				clear(buffer)
			} else {
				x := logits.piece(buffer, t, 0, o.Valid)
				loss[t] = rowLoss(buffer, x, target, invTokens)
				clear(buffer[o.Valid:])
			}
			if gradient != nil {
				gradient.store(worker, t, 0, buffer)
			}
		}
	}
	run := func() {
		invTokens = readControl(words).InvTokens
		b.pool.run(tasks, task)
	}
	if gradient == nil {
		return run
	}
	return storing(run, gradient)
}

// rowLoss returns log Σ exp(x) − x[target] and leaves the gradient,
// (softmax − onehot)·invTokens, in grad; grad may be x.
func rowLoss(grad, x []float32, target int, invTokens float32) float32 {
	n := len(x)
	if target >= n {
		nan := float32(math.NaN())
		fillWith(grad[:n], nan)
		return nan
	}
	top, at := maximum(x), x[target]
	var sum float64
	for from := 0; from < n; from += sumChunk {
		to := min(from+sumChunk, n)
		sum += float64(expSum(grad[from:to], x[from:to], 1, top))
	}
	factor := float32(float64(invTokens) / sum)
	for i := range grad[:n] {
		grad[i] *= factor
	}
	grad[target] -= invTokens
	return float32(float64(top) - float64(at) + math.Log(sum))
}

// sum runs in float64 and in one task: there is one loss per token.
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
