package emu

import (
	"cmp"

	"octet/backend"
	"octet/backend/emu/memory"
	"octet/backend/emu/simd"
)

var _ = implement((*binder).sumParts, "X")

func (b *binder) sumParts(o *backend.SumParts) func() {
	x, out := b.matrix(o.X), b.matrix(o.Out)
	var scales memory.BlockScales
	if scaledByBlock(o.X) {
		scales = b.blockScales(o.X)
	}
	rows, cols, width := out.Rows, out.Cols, cmp.Or(scales.Cols, out.Cols)
	buffers := b.pieceBuffers(cols)
	// piece is memory.Matrix.Piece, each block with its scale.
	piece := func(buffer []float32, row, col int) []float32 {
		if scales.F32 == nil {
			return x.Piece(buffer, row, col, len(buffer))
		}
		block := x
		for done := 0; done < len(buffer); {
			n := min(width-(col+done)%width, len(buffer)-done)
			at := scales.Index(row, col+done)
			block.Scale = scales.F32[at : at+1]
			block.Load(buffer[done:done+n], row, col+done)
			done += n
		}
		return buffer
	}
	return b.pool.Pieces(rows, cols, func(worker, row, col, n int) {
		sum := out.F32[row*out.LD+col:][:n]
		copy(sum, piece(sum, row, col))
		for row += rows; row < x.Rows; row += rows {
			simd.Add(sum, piece(buffers[worker][:n], row, col))
		}
	})
}
