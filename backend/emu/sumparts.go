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
	// load decodes a piece of a row, each block with its scale.
	load := func(dst []float32, row, col int) {
		for end := col + len(dst); col < end; {
			n := min(width-col%width, end-col)
			block := x
			if scales.F32 != nil {
				at := scales.Index(row, col)
				block.Scale = scales.F32[at : at+1]
			}
			block.Load(dst[:n], row, col)
			dst, col = dst[n:], col+n
		}
	}
	return b.pool.Pieces(rows, cols, func(worker, row, col, n int) {
		sum := out.F32[row*out.LD+col:][:n]
		load(sum, row, col)
		for row += rows; row < x.Rows; row += rows {
			part := buffers[worker][:n]
			load(part, row, col)
			simd.Add(sum, part)
		}
	})
}
