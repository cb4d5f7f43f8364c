package emu

import (
	"octet/backend"
	"octet/backend/emu/simd"
)

var _ = implement((*binder).add)

func (b *binder) add(o *backend.Add) func() {
	x, y := b.matrix(o.A), b.matrix(o.B)
	e := b.emitter(o.Out, x.Cols)
	sums, others := b.pieceBuffers(x.Cols), b.pieceBuffers(x.Cols)
	run := b.pieces(o.A.Rows(), x.Cols, func(worker, row, col, n int) {
		sum := sums[worker][:n]
		x.Load(sum, row, col)
		simd.Add(sum, y.Piece(others[worker], row, col, n))
		e.store(worker, row, col, sum)
	})
	return storing(run, e)
}
