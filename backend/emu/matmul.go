package emu

import (
	"fmt"

	"octet/backend"
)

// matMul binds a product of stored operands to the gemm of gemm.go. The
// formats' factors leave the sum as one alpha, read when it runs: the product
// of two scales per tensor does not depend on the summand.
func (b *binder) matMul(o *backend.MatMul) (kernel, error) {
	if o.A.DType.IsFP8() && !paired(b.spec, o.A.DType, o.B.DType) {
		return nil, fmt.Errorf("%w by backend emu: %s × %s, A is %s and B is %s",
			backend.ErrUnsupported, o.A.DType, o.B.DType, o.A, o.B)
	}
	g, err := newGemm(b.pool, b.matrixOf(o.A), o.TransA, b.matrixOf(o.B), o.TransB, b.matrixOf(o.Out))
	if err != nil {
		return nil, err
	}
	e := epilogue{
		rowScale: b.f32(o.RowScale), colScale: b.f32(o.ColScale),
		accumulate: o.Accumulate, outScale: 1,
	}
	if o.Residual != nil {
		e.residual = b.matrixOf(o.Residual)
	}
	if o.Amax != nil {
		e.amax = &b.f32(o.Amax)[0]
	}
	scaleA, scaleB, outScale := b.f32(o.A.Scale), b.f32(o.B.Scale), b.f32(o.OutScale)
	return compute(func() {
		e.alpha = factor(scaleA) * factor(scaleB)
		e.outScale = factor(outScale)
		g.run(e)
	}), nil
}
