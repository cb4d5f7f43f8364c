package emu

import (
	"octet/backend"
	"octet/backend/emu/simd"
)

var _ = implement((*binder).activation)

func (b *binder) activation(o *backend.Activation) func() {
	x := b.rows(o.X)
	e := b.emitter(o.Out, x.cols)
	buffers := b.pieceBuffers(x.cols)
	apply := simd.GELU
	if o.Kind == backend.ReLU {
		apply = simd.ReLU
	}
	run := b.pieces(o.X.Rows(), x.cols, func(worker, row, col, n int) {
		y := buffers[worker][:n]
		apply(y, x.piece(y, row, col, n))
		e.store(worker, row, col, y)
	})
	return storing(run, e)
}

var _ = implement((*binder).activationGrad)

func (b *binder) activationGrad(o *backend.ActivationGrad) func() {
	x, dout := b.rows(o.X), b.rows(o.DOut)
	e := b.emitter(o.DX, x.cols)
	inputs, gradients := b.pieceBuffers(x.cols), b.pieceBuffers(x.cols)
	apply := simd.GELUGradient
	if o.Kind == backend.ReLU {
		apply = simd.ReLUGradient
	}
	run := b.pieces(o.X.Rows(), x.cols, func(worker, row, col, n int) {
		dx := gradients[worker][:n]
		apply(dx, x.piece(inputs[worker], row, col, n), dout.piece(dx, row, col, n))
		e.store(worker, row, col, dx)
	})
	return storing(run, e)
}
