package emu

import (
	"math"

	"octet/backend"
	"octet/backend/emu/simd"
	"octet/fp8"
)

// gated reads the two branches of a SwiGLU piece by piece.
type gated struct {
	up, gate               rows
	upBuffers, gateBuffers [][]float32
}

func (b *binder) gated(up, gate *backend.Tensor) *gated {
	cols := up.Cols()
	return &gated{b.rows(up), b.rows(gate), b.pieceBuffers(cols), b.pieceBuffers(cols)}
}

// piece reads n elements of both from (row, col) on. The gate's are always a
// copy, which the caller may overwrite: few buffers stay in the first-level
// cache.
func (g *gated) piece(worker, row, col, n int) (up, gate []float32) {
	gate = g.gateBuffers[worker][:n]
	g.gate.load(gate, row, col)
	return g.up.piece(g.upBuffers[worker], row, col, n), gate
}

func (b *binder) swiGLU(o *backend.SwiGLU) func() {
	in, invC := b.gated(o.Up, o.Gate), b.f32(o.InvC)
	cols := o.Up.Cols()
	e := b.emitter(o.Out, cols)
	run := b.pieces(o.Up.Rows(), cols, func(worker, row, col, n int) {
		up, a := in.piece(worker, row, col, n)
		simd.GatedProduct(a, up, a)
		if invC != nil {
			simd.Multiply(a, a, invC[col:col+n])
		}
		e.store(worker, row, col, a)
	})
	return storing(run, e)
}

// swiGLUAmax computes each product as swiGLU does: the maxima are those of
// the very values that will be cast.
func (b *binder) swiGLUAmax(o *backend.SwiGLUAmax) func() {
	in, out := b.gated(o.Up, o.Gate), b.f32(o.Out)
	cols := o.Up.Cols()
	columns := b.columnMax(cols)
	run := b.pieces(o.Up.Rows(), cols, func(worker, row, col, n int) {
		up, a := in.piece(worker, row, col, n)
		simd.GatedProduct(a, up, a)
		columns.fold(worker, col, a)
	})
	return func() {
		columns.begin()
		run()
		columns.end(out)
	}
}

func (b *binder) swiGLUGrad(o *backend.SwiGLUGrad) func() {
	in, dout, invC := b.gated(o.Up, o.Gate), b.rows(o.DOut), b.f32(o.InvC)
	cols := o.Up.Cols()
	dUp, dGate := b.emitter(o.DUp, cols), b.emitter(o.DGate, cols)
	buffers := b.pieceBuffers(cols)
	run := b.pieces(o.Up.Rows(), cols, func(worker, row, col, n int) {
		up, dg := in.piece(worker, row, col, n)
		du := buffers[worker][:n]
		dout.load(du, row, col)
		if invC != nil {
			simd.Multiply(du, du, invC[col:col+n])
		}
		simd.GatedGradient(du, dg, du, up, dg)
		dUp.store(worker, row, col, du)
		dGate.store(worker, row, col, dg)
	})
	return storing(run, dUp, dGate)
}

// maxExponent bounds the exponents of the channel factors, so that neither
// they nor what they multiply leave the range of FP32.
const maxExponent = 30

func (b *binder) smoothScale(o *backend.SmoothScale) func() {
	c, invC, weight := b.f32(o.C), b.f32(o.InvC), b.f32(o.WeightMax)
	seen, amax := b.f32(o.Seen), b.f32(o.Amax)
	hScale, hScaleInv := b.f32(o.HScale), b.f32(o.HScaleInv)
	wScale, wScaleInv := b.f32(o.WScale), b.f32(o.WScaleInv)
	channel := make([]float32, len(c))
	collect := b.windowMax(channel, o.ChannelMax)
	return func() {
		collect()
		if seen != nil {
			simd.MaxMagnitudes(seen, channel)
		}
		if amax != nil {
			amax[0] = fp8.MaxAmax(amax[0], fp8.Amax(channel))
		}
		var h, w float32
		for i, m := range channel {
			e := balancedExponent(m, weight[i])
			c[i] = float32(math.Ldexp(1, e))
			invC[i] = 1 / c[i]
			h = fp8.MaxAmax(h, m*invC[i])
			w = fp8.MaxAmax(w, weight[i]*c[i])
		}
		hScale[0], _ = fp8.ScaleFor(h, o.HLimit, true)
		wScale[0], _ = fp8.ScaleFor(w, o.WLimit, true)
		hScaleInv[0], wScaleInv[0] = 1/hScale[0], 1/wScale[0]
	}
}

// balancedExponent is ⌈log2 √(m/k)⌉, clamped; 0 where m or k is 0 or not
// finite, since Frexp gives 0, infinity and NaN the exponent 0. In float64 the
// root is 2^j exactly when m/k is 4^j: two float32 cannot be closer to it
// without being equal than float64 can tell.
func balancedExponent(m, k float32) int {
	fraction, exponent := math.Frexp(math.Sqrt(float64(m) / float64(k)))
	if fraction == 0.5 {
		exponent--
	}
	return min(max(exponent, -maxExponent), maxExponent)
}
