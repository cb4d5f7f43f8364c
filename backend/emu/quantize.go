package emu

import (
	"slices"

	"octet/backend"
	"octet/backend/emu/cast"
	"octet/backend/emu/memory"
	"octet/backend/emu/simd"
	"octet/fp8"
)

// The ops of scaling: casts, amaxes, scales and amax histories.

var _ = implement((*binder).quantize, "Out", "X")

func (b *binder) quantize(o *backend.Quantize) func() {
	var blocks memory.BlockScales
	if scaledByBlock(o.X) {
		blocks = b.blockScales(o.X)
	}
	return cast.Quantize(b.pool, b.matrix(o.X), blocks, b.f32(o.RowScale), b.f32(o.ColScale), b.casts(o.Out))
}

var _ = implement((*binder).amax)

func (b *binder) amax(o *backend.Amax) func() {
	x, out := b.matrix(o.X), b.f32(o.Out)
	buffers := b.pieceBuffers(x.Cols)
	if len(out) == 1 {
		top := make(cast.Maxima, b.pool.Size())
		run := b.pool.Pieces(o.X.Rows(), x.Cols, func(worker, row, col, n int) {
			top.Include(worker, fp8.Amax(x.Piece(buffers[worker], row, col, n)))
		})
		return func() {
			clear(top)
			run()
			out[0] = top.Largest()
		}
	}
	columns := b.columnMax(x.Cols)
	run := b.pool.Pieces(o.X.Rows(), x.Cols, func(worker, row, col, n int) {
		columns.fold(worker, col, x.Piece(buffers[worker], row, col, n))
	})
	return func() {
		columns.begin()
		run()
		columns.end(out)
	}
}

// columnMax collects the largest magnitude of each column. Each worker keeps its own
// maxima; the result does not depend on the workers, as a maximum is the same in any
// order.
type columnMax struct{ top [][]float32 }

func (b *binder) columnMax(cols int) *columnMax { return &columnMax{b.scratch(cols)} }

func (c *columnMax) begin() {
	for _, top := range c.top {
		clear(top)
	}
}

// fold includes x, elements of one row from column col on, in the maxima.
func (c *columnMax) fold(worker, col int, x []float32) {
	simd.MaxMagnitudes(c.top[worker][col:col+len(x)], x)
}

func (c *columnMax) end(out []float32) {
	copy(out, c.top[0])
	for _, top := range c.top[1:] {
		simd.MaxMagnitudes(out, top)
	}
}

// windowMax returns a function that sets dst to the largest magnitudes over an amax
// history [window, len(dst)].
func (b *binder) windowMax(dst []float32, history *backend.Tensor) func() {
	h, rows := b.matrix(history), history.Rows()
	return func() {
		clear(dst)
		i := 0
		for r := range rows {
			for _, v := range h.Row(nil, r) {
				dst[i] = fp8.MaxAmax(dst[i], v)
				if i++; i == len(dst) {
					i = 0
				}
			}
		}
	}
}

var _ = implement((*binder).updateScale)

func (b *binder) updateScale(o *backend.UpdateScale) func() {
	scale, inv, seen := b.f32(o.Scale), b.f32(o.ScaleInv), b.f32(o.Seen)
	skip, factor := b.i32(o.Skip), b.f32(o.Factor)
	if factor == nil {
		factor = slices.Repeat([]float32{1}, len(scale))
	}
	amax := make([]float32, len(scale))
	collect := b.windowMax(amax, o.History)
	return func() {
		collect()
		if seen != nil {
			simd.MaxMagnitudes(seen, amax)
		}
		if skip != nil && skip[0] != 0 {
			return
		}
		for i, a := range amax {
			if s, sInv, ok := o.Choose(a, factor[i]); ok || !o.Keep {
				scale[i], inv[i] = s, sInv
			}
		}
	}
}

var _ = implement((*binder).pushHistory)

func (b *binder) pushHistory(o *backend.PushHistory) func() {
	value, history, skip := b.f32(o.Value), b.f32(o.History), b.i32(o.Skip)
	window, n, ld := o.History.Rows(), o.History.Cols(), o.History.LD
	return func() {
		if skip != nil && skip[0] != 0 {
			return
		}
		for r := window - 1; r > 0; r-- {
			copy(history[r*ld:r*ld+n], history[(r-1)*ld:])
		}
		copy(history[:n], value)
	}
}

var _ = implement((*binder).fill)

func (b *binder) fill(o *backend.Fill) func() {
	out := b.matrix(o.Out)
	code := uint16(0) // of 16 bits
	if out.DType != fp8.F32 {
		code = uint16(out.DType.Nearest(o.Value, fp8.NonSaturating))
	}
	return b.pool.Pieces(out.Rows, out.Cols, func(_, row, col, n int) {
		at := row*out.LD + col
		if out.DType == fp8.F32 {
			fillWith(out.F32[at:at+n], o.Value)
		} else {
			fillWith(out.U16[at:at+n], code)
		}
	})
}

func fillWith[E float32 | uint16](dst []E, value E) {
	for i := range dst {
		dst[i] = value
	}
}
