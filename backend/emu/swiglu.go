package emu

import (
	"octet/backend"
	"octet/backend/emu/cast"
	"octet/backend/emu/memory"
	"octet/backend/emu/simd"
)

// gated reads Up and Gate of a SwiGLU piece by piece.
type gated struct {
	up, gate               memory.Matrix
	upBuffers, gateBuffers [][]float32
}

func (b *binder) gated(up, gate *backend.Tensor) *gated {
	cols := up.Cols()
	return &gated{b.matrix(up), b.matrix(gate), b.pieceBuffers(cols), b.pieceBuffers(cols)}
}

// piece returns n elements of both from (row, col) on. gate is always a copy, which the
// caller may overwrite with its result: fewer buffers need the first-level cache.
func (g *gated) piece(worker, row, col, n int) (up, gate []float32) {
	gate = g.gateBuffers[worker][:n]
	g.gate.Load(gate, row, col)
	return g.up.Piece(g.upBuffers[worker], row, col, n), gate
}

var _ = implement((*binder).swiGLU)

func (b *binder) swiGLU(o *backend.SwiGLU) func() {
	if o.TokenScale != nil {
		return b.swiGLUPerToken(o)
	}
	in, invC := b.gated(o.Up, o.Gate), b.f32(o.InvC)
	cols := o.Up.Cols()
	result := b.output(o.Out)
	run := b.pool.Pieces(o.Up.Rows(), cols, func(worker, row, col, n int) {
		up, a := in.piece(worker, row, col, n)
		simd.MulSiLU(a, up, a)
		if invC != nil {
			simd.Multiply(a, a, invC[col:col+n])
		}
		result.Store(worker, row, col, a)
	})
	return cast.Storing(run, result)
}

var _ = implement((*binder).swiGLUAmax)

// swiGLUAmax computes each product exactly as swiGLU does, so its maxima are those of
// the values that swiGLU casts.
func (b *binder) swiGLUAmax(o *backend.SwiGLUAmax) func() {
	in, cols := b.gated(o.Up, o.Gate), o.Up.Cols()
	products, ups := b.columnMax(cols), (*columnMax)(nil)
	if o.UpOut != nil {
		ups = b.columnMax(cols)
	}
	run := b.pool.Pieces(o.Up.Rows(), cols, func(worker, row, col, n int) {
		up, a := in.piece(worker, row, col, n)
		if ups != nil {
			ups.fold(worker, col, up)
		}
		simd.MulSiLU(a, up, a)
		products.fold(worker, col, a)
	})
	out, seen, upOut, upSeen := b.f32(o.Out), b.f32(o.Seen), b.f32(o.UpOut), b.f32(o.UpSeen)
	return func() {
		products.begin()
		if ups != nil {
			ups.begin()
		}
		run()
		products.end(out)
		if seen != nil {
			simd.MaxMagnitudes(seen, out)
		}
		if ups != nil {
			ups.end(upOut)
		}
		if upSeen != nil {
			simd.MaxMagnitudes(upSeen, upOut)
		}
	}
}

var _ = implement((*binder).swiGLUGrad)

func (b *binder) swiGLUGrad(o *backend.SwiGLUGrad) func() {
	in, dout, invC := b.gated(o.Up, o.Gate), b.matrix(o.DOut), b.f32(o.InvC)
	tokenScale := b.f32(o.TokenScale)
	cols := o.Up.Cols()
	dUp, dGate := b.output(o.DUp), b.output(o.DGate)
	buffers := b.pieceBuffers(cols)
	run := b.pool.Pieces(o.Up.Rows(), cols, func(worker, row, col, n int) {
		up, dg := in.piece(worker, row, col, n)
		du := buffers[worker][:n]
		dout.Load(du, row, col)
		if invC != nil {
			simd.Multiply(du, du, invC[col:col+n])
		}
		if tokenScale != nil {
			simd.Scale(du, 1/tokenScale[row])
		}
		simd.MulSiLUGradient(du, dg, du, up, dg)
		dUp.Store(worker, row, col, du)
		dGate.Store(worker, row, col, dg)
	})
	return cast.Storing(run, dUp, dGate)
}
