package emu

import (
	"math"

	"octet/backend"
)

// RMSNorm and its backward. Row sums run in 32 lanes that are added up in
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
			scaleByGain(out, v, gain, inv)
			e.store(worker, r, 0, out)
		}
	}
	return storing(func() { b.pool.run(tasks, task) }, e)
}

// dotGo is the specification of dot: Σ x·y, the i-th product going to lane
// i mod 32.
func dotGo(x, y []float32) float32 {
	var lanes [32]float32
	dotLanes(&lanes, x, y)
	return foldSums(&lanes)
}

// dotLanes is dotGo without the last step.
func dotLanes(lanes *[32]float32, x, y []float32) {
	y = y[:len(x)]
	for i, v := range x {
		lanes[i%32] += float32(v * y[i])
	}
}

// foldSums adds up lanes.
func foldSums(lanes *[32]float32) float32 {
	for half := 16; half > 0; half /= 2 {
		for i := range half {
			lanes[i] += lanes[i+half]
		}
	}
	return lanes[0]
}

// scaleByGainGo is the specification of scaleByGain: dst = x · inv ⊙ gain.
func scaleByGainGo(dst, x, gain []float32, inv float32) {
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

	inputs, gradients, results := b.scratch(cols), b.scratch(cols), b.scratch(cols)
	rowsTask := func(worker, chunk int) {
		dx := results[worker]
		sum := partial[chunk*cols : (chunk+1)*cols]
		clear(sum)
		for r := chunk * gainRows; r < min(tokens, (chunk+1)*gainRows); r++ {
			x, dy, inv := x.row(inputs[worker], r), dout.row(gradients[worker], r), invRMS[r]
			mean := gainSums(sum, x, dy, gain, inv) / float32(cols)
			normGradient(dx, x, dy, gain, inv, mean)
			if o.Residual != nil {
				addInto(dx, residual.row(inputs[worker], r))
			}
			e.store(worker, r, 0, dx)
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

// gainSumsGo is the specification of gainSums: of one row, with x̂ = x·inv and
// g = dy ⊙ gain, it adds dy ⊙ x̂ to dgain and returns Σ g·x̂, the i-th product
// going to lane i mod 32.
func gainSumsGo(dgain, x, dy, gain []float32, inv float32) float32 {
	var lanes [32]float32
	gainLanes(&lanes, dgain, x, dy, gain, inv)
	return foldSums(&lanes)
}

// gainLanes is gainSumsGo without the last step.
func gainLanes(lanes *[32]float32, dgain, x, dy, gain []float32, inv float32) {
	n := len(x)
	dgain, dy, gain = dgain[:n], dy[:n], gain[:n]
	for i, v := range x {
		h := float32(v * inv)
		dgain[i] += float32(dy[i] * h)
		lanes[i%32] += float32(float32(dy[i]*gain[i]) * h)
	}
}

// normGradientGo is the specification of normGradient: of one row it is
// dx = inv · (g − x̂ · mean), with x̂ and g as in gainSums.
func normGradientGo(dx, x, dy, gain []float32, inv, mean float32) {
	n := len(dx)
	x, dy, gain = x[:n], dy[:n], gain[:n]
	for i, v := range x {
		dx[i] = inv * (float32(dy[i]*gain[i]) - float32(float32(v*inv)*mean))
	}
}
