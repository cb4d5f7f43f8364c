package emu

import (
	"octet/backend"
	"octet/backend/emu/cast"
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
	x := b.matrix(o.X)
	result := b.output(o.Out)
	buffers := b.pieceBuffers(x.Cols)
	run := b.pool.Pieces(o.X.Rows(), x.Cols, func(worker, row, col, n int) {
		y := buffers[worker][:n]
		f.apply(y, x.Piece(y, row, col, n))
		result.Store(worker, row, col, y)
	})
	return compute(cast.Storing(run, result)), nil
}

var _ = implementOp(row{}, (*binder).activationGrad)

func (b *binder) activationGrad(_ *backend.Node, o *backend.ActivationGrad) (kernel, error) {
	f, ok := activations[o.Kind]
	if !ok {
		return nil, b.unsupported("no kernel for the gradient of activation %d", o.Kind)
	}
	x, dout := b.matrix(o.X), b.matrix(o.DOut)
	result := b.output(o.DX)
	inputs, gradients := b.pieceBuffers(x.Cols), b.pieceBuffers(x.Cols)
	run := b.pool.Pieces(o.X.Rows(), x.Cols, func(worker, row, col, n int) {
		dx := gradients[worker][:n]
		f.gradient(dx, x.Piece(inputs[worker], row, col, n), dout.Piece(dx, row, col, n))
		result.Store(worker, row, col, dx)
	})
	return compute(cast.Storing(run, result)), nil
}
