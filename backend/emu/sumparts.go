package emu

import (
	"cmp"

	"octet/backend"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/backend/emu/simd"
	"octet/fp8"
)

var _ = implement((*binder).sumParts, "X")

func (b *binder) sumParts(o *backend.SumParts) func() {
	if o.Rounded {
		return b.sumRounded(o)
	}
	x, out := b.matrix(o.X), b.matrix(o.Out)
	var scales memory.BlockScales
	if scaledByBlock(o.X) {
		scales = b.blockScales(o.X)
	}
	rows, cols, width := out.Rows, out.Cols, cmp.Or(scales.Cols, out.Cols)
	buffers := b.pieceBuffers(cols)
	sums := b.accumulated(o, cols)
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
		to := out.F32[row*out.LD+col:][:n]
		sum := to
		if sums != nil {
			sum = sums[worker][:n]
		}
		copy(sum, piece(sum, row, col))
		for row += rows; row < x.Rows; row += rows {
			simd.Add(sum, piece(buffers[worker][:n], row, col))
		}
		if sums != nil {
			simd.Add(to, sum)
		}
	})
}

// accumulated returns buffers for the sums of a piece, one for each worker, if the op adds them to
// Out; else nil: it computes them there.
func (b *binder) accumulated(o *backend.SumParts, cols int) [][]float32 {
	if !o.Accumulate {
		return nil
	}
	return b.pieceBuffers(cols)
}

// sumRounded adds codes, whose sums have X's format.
func (b *binder) sumRounded(o *backend.SumParts) func() {
	x, out, atMax := b.matrix(o.X), b.matrix(o.Out), b.f32(o.AtMax)
	d, rows, scale := o.X.DType, out.Rows, x.ScaleInv
	codes := x
	codes.Scale = nil
	buffers, sums := b.pieceBuffers(out.Cols), b.accumulated(o, out.Cols)
	bytes, counts := make([][]uint8, b.pool.Size()), make([][16]uint32, b.pool.Size()) // a cache line each
	for i := range bytes {
		bytes[i] = make([]uint8, pool.PieceWidth(out.Cols))
	}
	run := b.pool.Pieces(rows, out.Cols, func(worker, row, col, n int) {
		to, rounded := out.F32[row*out.LD+col:][:n], bytes[worker][:n]
		sum := to
		if sums != nil {
			sum = sums[worker][:n]
		}
		codes.Load(sum, row, col)
		for row += rows; row < x.Rows; row += rows {
			simd.Add(sum, codes.Piece(buffers[worker], row, col, n))
			if o.Each {
				fp8.Quantize8(rounded, sum, d, 1, false)
				fp8.Dequantize8(sum, rounded, d, 1)
			}
		}
		fp8.Quantize8(rounded, sum, d, 1, false)
		if atMax != nil {
			counts[worker][0] += atLargest(rounded, d)
		}
		fp8.Dequantize8(sum, rounded, d, scale())
		if sums != nil {
			simd.Add(to, sum)
		}
	})
	return func() {
		clear(counts)
		run()
		if atMax != nil {
			total := uint32(0)
			for i := range counts {
				total += counts[i][0]
			}
			atMax[0] += float32(total)
		}
	}
}

// atLargest returns the number of codes of ± d's largest value.
func atLargest(codes []uint8, d fp8.DType) (n uint32) {
	top := uint8(d.Nearest(d.Max(), fp8.Saturate))
	sign := uint8(d.Nearest(-d.Max(), fp8.Saturate)) ^ top
	for _, c := range codes {
		if c&^sign == top {
			n++
		}
	}
	return n
}

var _ = implement((*binder).stepMu)

func (b *binder) stepMu(o *backend.StepMu) func() {
	mu, atMax, skip := b.f32(o.Mu), b.f32(o.AtMax), b.i32(o.Skip)
	return func() {
		if skip != nil && skip[0] != 0 {
			return
		}
		for i := range mu {
			mu[i] = o.Next(mu[i], atMax[i])
		}
	}
}
