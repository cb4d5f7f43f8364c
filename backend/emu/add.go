package emu

import (
	"octet/backend"
	"octet/backend/emu/simd"
)

var _ = implement((*binder).add)

func (b *binder) add(o *backend.Add) func() {
	x, y := b.rows(o.A), b.rows(o.B)
	e := b.emitter(o.Out, x.cols)
	sums, others := b.pieceBuffers(x.cols), b.pieceBuffers(x.cols)
	run := b.pieces(o.A.Rows(), x.cols, func(worker, row, col, n int) {
		sum := sums[worker][:n]
		x.load(sum, row, col)
		simd.Add(sum, y.piece(others[worker], row, col, n))
		e.store(worker, row, col, sum)
	})
	return storing(run, e)
}
