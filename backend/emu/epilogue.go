package emu

import (
	"octet/backend"
	"octet/backend/emu/cast"
	"octet/backend/emu/memory"
	"octet/backend/emu/simd"
)

var _ = implement((*binder).epilogue)

// epilogue runs an epilogue as a separate pass, which lowering for other devices emits.
// emu's own GEMMs fuse it into their tiles (tileOut).
func (b *binder) epilogue(o *backend.Epilogue) func() {
	x, rowScale, colScale := b.matrix(o.X), b.f32(o.RowScale), b.f32(o.ColScale)
	var plus *memory.Matrix
	switch {
	case o.Residual != nil:
		r := b.matrix(o.Residual)
		plus = &r
	case o.Accumulate:
		r := b.matrix(o.Out)
		plus = &r
	}
	result := b.output([]backend.Cast{{Out: o.Out, Scale: o.OutScale, Amax: o.Amax}})
	buffers, others := b.pieceBuffers(x.Cols), b.pieceBuffers(x.Cols)
	run := b.pool.Pieces(o.X.Rows(), x.Cols, func(worker, row, col, n int) {
		v := buffers[worker][:n]
		x.Load(v, row, col)
		if rowScale != nil {
			simd.Scale(v, rowScale[row])
		}
		if colScale != nil {
			simd.Multiply(v, v, colScale[col:col+n])
		}
		if plus != nil {
			simd.Add(v, plus.Piece(others[worker], row, col, n))
		}
		result.Store(worker, row, col, v)
	})
	return cast.Storing(run, result)
}
