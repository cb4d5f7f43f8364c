package emu

import (
	"math"

	"octet/backend"
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

// embedColumns is how many columns of the table's gradient one task owns. It
// walks all tokens: nobody else adds to its columns, and the tokens' order is
// the order of addition.
const embedColumns = 32

func (b *binder) embedGrad(o *backend.EmbedGrad) func() {
	ids, dout, grad := b.integers(o.IDs), b.rows(o.DOut), b.matrixOf(o.DTable)
	tokens, vocab, cols := o.DOut.Rows(), grad.rows, grad.cols
	buffers := b.scratch(embedColumns)
	task := func(worker, task int) {
		col := task * embedColumns
		n := min(embedColumns, cols-col)
		for token := range tokens {
			if id := ids.at(token); uint(id) < uint(vocab) {
				at := id*grad.ld + col
				addInto(grad.f32[at:at+n], dout.piece(buffers[worker], token, col, n))
			}
		}
	}
	tasks := parts(cols, embedColumns)
	zero := b.fill(&backend.Fill{Out: o.DTable})
	return func() {
		if !o.Accumulate {
			zero()
		}
		b.pool.run(tasks, task)
	}
}

func (b *binder) add(o *backend.Add) func() {
	x, y := b.rows(o.A), b.rows(o.B)
	e := b.emitter(o.Out, x.cols)
	sums, others := b.pieceBuffers(x.cols), b.pieceBuffers(x.cols)
	run := b.pieces(o.A.Rows(), x.cols, func(worker, row, col, n int) {
		sum := sums[worker][:n]
		x.load(sum, row, col)
		addInto(sum, y.piece(others[worker], row, col, n))
		e.store(worker, row, col, sum)
	})
	return storing(run, e)
}

// addInto is dst += x.
func addInto(dst, x []float32) {
	x = x[:len(dst)]
	for i := range dst {
		dst[i] += x[i]
	}
}
