package emu

import (
	"octet/backend"
	"octet/backend/emu/simd"
)

var activations = map[backend.ActivationKind]struct {
	apply    func(dst, x []float32)
	gradient func(dx, x, dy []float32)
}{
	backend.GELU: {simd.GELU, simd.GELUGradient},
	backend.ReLU: {simd.ReLU, simd.ReLUGradient},
}

var _ = implementOp(row{}, (*binder).activation)

func (b *binder) activation(_ *backend.Node, o *backend.Activation) (kernel, error) {
	f, ok := activations[o.Kind]
	if !ok {
		return nil, b.unsupported("no kernel for activation %d", o.Kind)
	}
	x := b.rows(o.X)
	e := b.emitter(o.Out, x.cols)
	buffers := b.pieceBuffers(x.cols)
	run := b.pieces(o.X.Rows(), x.cols, func(worker, row, col, n int) {
		y := buffers[worker][:n]
		f.apply(y, x.piece(y, row, col, n))
		e.store(worker, row, col, y)
	})
	return compute(storing(run, e)), nil
}

var _ = implementOp(row{}, (*binder).activationGrad)

func (b *binder) activationGrad(_ *backend.Node, o *backend.ActivationGrad) (kernel, error) {
	f, ok := activations[o.Kind]
	if !ok {
		return nil, b.unsupported("no kernel for the gradient of activation %d", o.Kind)
	}
	x, dout := b.rows(o.X), b.rows(o.DOut)
	e := b.emitter(o.DX, x.cols)
	inputs, gradients := b.pieceBuffers(x.cols), b.pieceBuffers(x.cols)
	run := b.pieces(o.X.Rows(), x.cols, func(worker, row, col, n int) {
		dx := gradients[worker][:n]
		f.gradient(dx, x.piece(inputs[worker], row, col, n), dout.piece(dx, row, col, n))
		e.store(worker, row, col, dx)
	})
	return compute(storing(run, e)), nil
}
