package emu

import (
	"octet/backend"
	"octet/backend/emu/cast"
	"octet/backend/emu/simd"
)

var _ = implement((*binder).add)

func (b *binder) add(o *backend.Add) func() {
	x, y := b.matrix(o.A), b.matrix(o.B)
	result := b.output(o.Out)
	sums, others := b.pieceBuffers(x.Cols), b.pieceBuffers(x.Cols)
	bias := o.Bias()
	run := b.pool.Pieces(o.A.Rows(), x.Cols, func(worker, row, col, n int) {
		sum, other := sums[worker][:n], row
		if bias {
			other = 0
		}
		x.Load(sum, row, col)
		simd.Add(sum, y.Piece(others[worker], other, col, n))
		result.Store(worker, row, col, sum)
	})
	return cast.Storing(run, result)
}
