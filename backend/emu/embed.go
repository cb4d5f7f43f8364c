package emu

import (
	"math"

	"octet/backend"
	"octet/backend/emu/cast"
	"octet/backend/emu/pool"
	"octet/backend/emu/simd"
)

var _ = implement((*binder).embed)

// embed gives a token outside the table a row of NaN, which shows in the loss. The host
// already checks ids.
func (b *binder) embed(o *backend.Embed) func() {
	table, ids := b.matrix(o.Table), b.integers(o.IDs)
	vocab := o.Table.Rows()
	result := b.output(o.Out)
	buffers := b.pieceBuffers(table.Cols)
	run := b.pool.Pieces(o.IDs.Elems(), table.Cols, func(worker, token, col, n int) {
		if id := ids(token); uint(id) < uint(vocab) {
			result.Store(worker, token, col, table.Piece(buffers[worker], id, col, n))
			return
		}
		invalid := buffers[worker][:n]
		fillWith(invalid, float32(math.NaN()))
		result.Store(worker, token, col, invalid)
	})
	return cast.Storing(run, result)
}

var _ = implement((*binder).embedGrad)

// embedGrad gives each task some columns of the table's gradient. A task goes through
// all tokens, so their order is the order of addition, whatever the split. Two tasks per
// worker read long runs of each row and still balance the load.
func (b *binder) embedGrad(o *backend.EmbedGrad) func() {
	ids, dout, grad := b.integers(o.IDs), b.matrix(o.DOut), b.matrix(o.DTable)
	tokens, vocab, cols := o.DOut.Rows(), grad.Rows, grad.Cols
	width := pool.RoundUp(pool.CeilDiv(cols, 2*b.pool.Size()), 16)
	buffers := b.scratch(width)
	task := func(worker, task int) {
		col := task * width
		n := min(width, cols-col)
		for token := range tokens {
			if id := ids(token); uint(id) < uint(vocab) {
				at := id*grad.LD + col
				simd.Add(grad.F32[at:at+n], dout.Piece(buffers[worker], token, col, n))
			}
		}
	}
	tasks := pool.CeilDiv(cols, width)
	zero := b.fill(&backend.Fill{Out: o.DTable})
	return func() {
		if !o.Accumulate {
			zero()
		}
		b.pool.Run(tasks, task)
	}
}
