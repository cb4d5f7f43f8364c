package emu

import (
	"math"

	"octet/backend"
)

// RMSNorm and its backward. Row sums run in eight lanes that are added up in
// a fixed order, products are rounded before they are added: all machines get
// the same bits.

func (b *binder) rmsNorm(o *backend.RMSNorm) func() {
	x, gain, invRMS := b.rows(o.X), b.f32(o.Gain), b.f32(o.InvRMS)
	e := b.emitter(o.Out, x.cols)
	buffers, results := b.scratch(x.cols), b.scratch(x.cols)
	tokens := o.X.Rows()
	tasks, height := rowTasks(tokens, x.cols)
	task := func(worker, task int) {
		out := results[worker]
		for r := task * height; r < min(tokens, (task+1)*height); r++ {
			v := x.row(buffers[worker], r)
			mean := float64(dot(v, v)) / float64(len(v))
			inv := float32(1 / math.Sqrt(mean+float64(o.Eps)))
			if invRMS != nil {
				invRMS[r] = inv
			}
			scaleByGain(out, v, inv, gain)
			e.store(worker, r, 0, out)
		}
	}
	return storing(func() { b.pool.run(tasks, task) }, e)
}

// dot is Σ x·y, the i-th product going to lane i mod 8.
func dot(x, y []float32) float32 {
	var lane [8]float32
	for ; len(x) >= 8 && len(y) >= 8; x, y = x[8:], y[8:] {
		lane[0] += float32(x[0] * y[0])
		lane[1] += float32(x[1] * y[1])
		lane[2] += float32(x[2] * y[2])
		lane[3] += float32(x[3] * y[3])
		lane[4] += float32(x[4] * y[4])
		lane[5] += float32(x[5] * y[5])
		lane[6] += float32(x[6] * y[6])
		lane[7] += float32(x[7] * y[7])
	}
	for i, v := range x {
		lane[i] += float32(v * y[i])
	}
	return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]))
}

// scaleByGain is dst = x · inv ⊙ gain.
func scaleByGain(dst, x []float32, inv float32, gain []float32) {
	x, gain = x[:len(dst)], gain[:len(dst)]
	for i := range dst {
		dst[i] = float32(x[i]*inv) * gain[i]
	}
}

// gainRows is how many rows one partial sum of DGain covers: the partial sums
// then cost a fraction of reading the rows.
const gainRows = 32

func (b *binder) rmsNormGrad(o *backend.RMSNormGrad) func() {
	x, dout, residual := b.rows(o.X), b.rows(o.DOut), rows{}
	if o.Residual != nil {
		residual = b.rows(o.Residual)
	}
	gain, invRMS, dgain := b.f32(o.Gain), b.f32(o.InvRMS), b.f32(o.DGain)
	e := b.emitter(o.DX, x.cols)
	tokens, cols := o.X.Rows(), x.cols
	chunks := parts(tokens, gainRows)
	partial := make([]float32, chunks*cols)

	type buffer struct{ x, dout, residual, normed, dx []float32 }
	buffers := make([]buffer, b.pool.size())
	for w, all := range b.scratch(5 * cols) {
		next := func() []float32 {
			piece := all[:cols:cols]
			all = all[cols:]
			return piece
		}
		buffers[w] = buffer{next(), next(), next(), next(), next()}
	}
	rowsTask := func(worker, chunk int) {
		buf := &buffers[worker]
		sum := partial[chunk*cols : (chunk+1)*cols]
		clear(sum)
		for r := chunk * gainRows; r < min(tokens, (chunk+1)*gainRows); r++ {
			dy, inv := dout.row(buf.dout, r), invRMS[r]
			normedAndGain(buf.normed, buf.dx, sum, x.row(buf.x, r), inv, dy, gain)
			mean := dot(buf.dx, buf.normed) / float32(cols)
			normGradient(buf.dx, buf.normed, mean, inv)
			if o.Residual != nil {
				addInto(buf.dx, residual.row(buf.residual, r))
			}
			e.store(worker, r, 0, buf.dx)
		}
	}
	columns := b.pieces(1, cols, func(_, _, col, n int) {
		out := dgain[col : col+n]
		sum := partial[col : col+n]
		for chunk := 1; chunk < chunks; chunk++ {
			addInto(sum, partial[chunk*cols+col:chunk*cols+col+n])
		}
		if o.Accumulate {
			addInto(out, sum)
		} else {
			copy(out, sum)
		}
	})
	return storing(func() {
		b.pool.run(chunks, rowsTask)
		columns()
	}, e)
}

// normedAndGain computes of one row x̂ = x·inv and g = dy ⊙ gain, and adds
// dy ⊙ x̂ to dgain.
func normedAndGain(normed, g, dgain, x []float32, inv float32, dy, gain []float32) {
	n := len(x)
	normed, g, dgain, dy, gain = normed[:n], g[:n], dgain[:n], dy[:n], gain[:n]
	for i, v := range x {
		h := v * inv
		normed[i] = h
		g[i] = dy[i] * gain[i]
		dgain[i] += float32(dy[i] * h)
	}
}

// normGradient is g = inv · (g − x̂ · mean).
func normGradient(g, normed []float32, mean, inv float32) {
	normed = normed[:len(g)]
	for i := range g {
		g[i] = inv * (g[i] - float32(normed[i]*mean))
	}
}
