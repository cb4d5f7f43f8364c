package emu

import (
	"math"

	"octet/backend"
	"octet/backend/emu/cast"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/backend/emu/simd"
)

var _ = implement((*binder).rmsNorm)

func (b *binder) rmsNorm(o *backend.RMSNorm) func() {
	x, gain, invRMS := b.matrix(o.X), b.f32(o.Gain), b.f32(o.InvRMS)
	result := b.output(o.Out)
	buffers, results := b.scratch(x.Cols), b.scratch(x.Cols)
	run := b.pool.Rows(x.Rows, x.Cols, func(worker, r int) {
		out := results[worker]
		v := x.Row(buffers[worker], r)
		mean := float64(simd.Dot(v, v)) / float64(len(v))
		inv := float32(1 / math.Sqrt(mean+float64(o.Eps)))
		if invRMS != nil {
			invRMS[r] = inv
		}
		simd.ScaleByGain(out, v, gain, inv)
		result.Store(worker, r, 0, out)
	})
	return cast.Storing(run, result)
}

// gainRows is how many rows one partial sum of DGain covers: enough that the partial
// sums cost little compared with reading the rows.
const gainRows = 32

var _ = implement((*binder).rmsNormGrad)

func (b *binder) rmsNormGrad(o *backend.RMSNormGrad) func() {
	x, dout, residual := b.matrix(o.X), b.matrix(o.DOut), memory.Matrix{}
	if o.Residual != nil {
		residual = b.matrix(o.Residual)
	}
	gain, invRMS, dgain := b.f32(o.Gain), b.f32(o.InvRMS), b.f32(o.DGain)
	result := b.output(o.DX)
	tokens, cols := o.X.Rows(), x.Cols
	chunks := pool.CeilDiv(tokens, gainRows)
	partial := b.shared(chunks * cols)

	inputs, gradients, results := b.scratch(cols), b.scratch(cols), b.scratch(cols)
	rowsTask := func(worker, chunk int) {
		dx := results[worker]
		sum := partial[chunk*cols : (chunk+1)*cols]
		clear(sum)
		for r := chunk * gainRows; r < min(tokens, (chunk+1)*gainRows); r++ {
			dout.Prefetch(min(r+3, tokens-1), 0, cols) // decoding prefetches, but FP32 is not decoded
			x, dy, inv := x.Row(inputs[worker], r), dout.Row(gradients[worker], r), invRMS[r]
			mean := simd.GainSums(sum, x, dy, gain, inv) / float32(cols)
			simd.NormGradient(dx, x, dy, gain, inv, mean)
			if o.Residual != nil {
				simd.Add(dx, residual.Row(inputs[worker], r))
			}
			result.Store(worker, r, 0, dx)
		}
	}
	columns := b.pool.Pieces(1, cols, func(_, _, col, n int) {
		out := dgain[col : col+n]
		sum := partial[col : col+n]
		for chunk := 1; chunk < chunks; chunk++ {
			simd.Add(sum, partial[chunk*cols+col:chunk*cols+col+n])
		}
		if o.Accumulate {
			simd.Add(out, sum)
		} else {
			copy(out, sum)
		}
	})
	return cast.Storing(func() {
		b.pool.Run(chunks, rowsTask)
		columns()
	}, result)
}
