package emu

import (
	"math"

	"octet/backend"
	"octet/backend/emu/simd"
)

// embed gives a token outside the table a row of NaN, so that the loss shows
// it; the host checks ids before they get here.
func (b *binder) embed(o *backend.Embed) func() {
	table, ids := b.rows(o.Table), b.integers(o.IDs)
	vocab := o.Table.Rows()
	e := b.emitter(o.Out, table.cols)
	buffers := b.pieceBuffers(table.cols)
	run := b.pieces(o.IDs.Elems(), table.cols, func(worker, token, col, n int) {
		if id := ids.at(token); uint(id) < uint(vocab) {
			e.store(worker, token, col, table.piece(buffers[worker], id, col, n))
			return
		}
		invalid := buffers[worker][:n]
		fillWith(invalid, float32(math.NaN()))
		e.store(worker, token, col, invalid)
	})
	return storing(run, e)
}

// embedGrad gives each task columns of the table's gradient of its own, for
// which it walks all tokens: their order is the order of addition, however the
// columns are cut. Two tasks for each worker read long runs of every row and
// still even out.
func (b *binder) embedGrad(o *backend.EmbedGrad) func() {
	ids, dout, grad := b.integers(o.IDs), b.rows(o.DOut), b.matrixOf(o.DTable)
	tokens, vocab, cols := o.DOut.Rows(), grad.rows, grad.cols
	width := roundUp(parts(cols, 2*b.pool.size()), 16)
	buffers := b.scratch(width)
	task := func(worker, task int) {
		col := task * width
		n := min(width, cols-col)
		for token := range tokens {
			if id := ids.at(token); uint(id) < uint(vocab) {
				at := id*grad.ld + col
				simd.Add(grad.f32[at:at+n], dout.piece(buffers[worker], token, col, n))
			}
		}
	}
	tasks := parts(cols, width)
	zero := b.fill(&backend.Fill{Out: o.DTable})
	return func() {
		if !o.Accumulate {
			zero()
		}
		b.pool.run(tasks, task)
	}
}
