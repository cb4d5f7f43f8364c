package emu

import (
	"math"

	"octet/backend"
)

// The ops of telemetry. They run once in many steps, in plain Go.

func (b *binder) castHealth(o *backend.CastHealth) func() {
	x, codes, out := b.rows(o.X), b.rows(o.Codes), b.f32(o.Out)
	scaleInv, limit := codes.scale, o.Codes.DType.ClipLimit()
	buffers := b.pieceBuffers(x.cols)
	type counts struct {
		clipped, flushed int64
		_                [6]int64 // a cache line for each worker
	}
	workers := make([]counts, b.pool.size())
	run := b.pieces(o.X.Rows(), x.cols, func(worker, row, col, n int) {
		at := row*codes.ld + col
		list := codes.u8[at : at+n]
		top := limit * scaleInv[0]
		var clipped, flushed int64
		for i, v := range x.piece(buffers[worker], row, col, n) {
			if v > top || v < -top {
				clipped++
			}
			if list[i]&0x7f == 0 && v != 0 && v == v {
				flushed++
			}
		}
		workers[worker].clipped += clipped
		workers[worker].flushed += flushed
	})
	elems := float64(o.X.Elems())
	return func() {
		clear(workers)
		run()
		var sum counts
		for _, w := range workers {
			sum.clipped += w.clipped
			sum.flushed += w.flushed
		}
		out[0], out[1] = float32(float64(sum.clipped)/elems), float32(float64(sum.flushed)/elems)
		out[2] = scaleInv[0]
	}
}

// rowCosine adds up in float64, one row after the other.
func (b *binder) rowCosine(o *backend.RowCosine) func() {
	x, y, out := b.rows(o.A), b.rows(o.B), b.f32(o.Out)
	rows, cols, ld := o.A.Rows(), x.cols, o.Out.LD
	left, right := b.scratch(cols), b.scratch(cols)
	count, each := rowTasks(rows, cols)
	task := func(worker, task int) {
		for i := task * each; i < min(rows, (task+1)*each); i++ {
			u, v := x.row(left[worker], i), y.row(right[worker], i)
			var dot, uu, vv float64
			for j, a := range u {
				a, b := float64(a), float64(v[j])
				dot += a * b
				uu += a * a
				vv += b * b
			}
			cosine := 0.0
			if uu != 0 && vv != 0 {
				cosine = dot / (math.Sqrt(uu) * math.Sqrt(vv))
			}
			out[i], out[ld+i], out[2*ld+i] = float32(cosine), float32(math.Sqrt(uu)), float32(math.Sqrt(vv))
		}
	}
	return func() { b.pool.run(count, task) }
}
