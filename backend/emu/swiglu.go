package emu

import (
	"math"

	"octet/backend"
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

func (g *gated) piece(worker, row, col, n int) (up, gate []float32) {
	return g.up.piece(g.upBuffers[worker], row, col, n), g.gate.piece(g.gateBuffers[worker], row, col, n)
}

func (b *binder) swiGLU(o *backend.SwiGLU) func() {
	in, invC := b.gated(o.Up, o.Gate), b.f32(o.InvC)
	cols := o.Up.Cols()
	e := b.emitter(o.Out, cols)
	products := b.pieceBuffers(cols)
	run := b.pieces(o.Up.Rows(), cols, func(worker, row, col, n int) {
		up, gate := in.piece(worker, row, col, n)
		a := products[worker][:n]
		gatedProduct(a, up, gate)
		if invC != nil {
			multiply(a, a, invC[col:col+n])
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
	products := b.pieceBuffers(cols)
	columns := b.columnMax(cols)
	run := b.pieces(o.Up.Rows(), cols, func(worker, row, col, n int) {
		up, gate := in.piece(worker, row, col, n)
		a := products[worker][:n]
		gatedProduct(a, up, gate)
		columns.fold(worker, col, a)
	})
	return func() {
		columns.begin()
		run()
		columns.end(out)
	}
}

// gatedProduct is dst = up ⊙ silu(gate); dst must be neither.
func gatedProduct(dst, up, gate []float32) {
	sigmoids(dst, gate)
	up, gate = up[:len(dst)], gate[:len(dst)]
	for i, s := range dst {
		dst[i] = up[i] * (gate[i] * s)
	}
}

func (b *binder) swiGLUGrad(o *backend.SwiGLUGrad) func() {
	in, dout, invC := b.gated(o.Up, o.Gate), b.rows(o.DOut), b.f32(o.InvC)
	cols := o.Up.Cols()
	dUp, dGate := b.emitter(o.DUp, cols), b.emitter(o.DGate, cols)
	buffers, ups, gates := b.pieceBuffers(cols), b.pieceBuffers(cols), b.pieceBuffers(cols)
	run := b.pieces(o.Up.Rows(), cols, func(worker, row, col, n int) {
		up, gate := in.piece(worker, row, col, n)
		da := dout.piece(buffers[worker], row, col, n)
		if invC != nil {
			scaled := buffers[worker][:n]
			multiply(scaled, da, invC[col:col+n])
			da = scaled
		}
		du, dg := ups[worker][:n], gates[worker][:n]
		gatedGradient(du, dg, da, up, gate)
		dUp.store(worker, row, col, du)
		dGate.store(worker, row, col, dg)
	})
	return storing(run, dUp, dGate)
}

// gatedGradient is the backward of gatedProduct; dg must be no input.
func gatedGradient(du, dg, da, up, gate []float32) {
	sigmoids(dg, gate)
	n := len(da)
	du, dg, up, gate = du[:n], dg[:n], up[:n], gate[:n]
	for i, d := range da {
		g, s := gate[i], dg[i]
		du[i] = d * (g * s)
		dg[i] = d * up[i] * (s * (1 + float32(g*(1-s))))
	}
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
			maxMagnitudes(seen, channel)
		}
		if amax != nil {
			amax[0] = fp8.MaxAmax(amax[0], fp8.Amax(channel))
		}
		var h, w float32
		for i, m := range channel {
			e := balancedExponent(m, weight[i])
			c[i], invC[i] = powerOfTwo(e), powerOfTwo(-e)
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
func balancedExponent(m, k float32) int32 {
	fraction, exponent := math.Frexp(math.Sqrt(float64(m) / float64(k)))
	if fraction == 0.5 {
		exponent--
	}
	return int32(min(max(exponent, -maxExponent), maxExponent))
}
