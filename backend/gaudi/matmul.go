package gaudi

import (
	"octet/backend"
	"octet/csrc/libsynapse"
	"octet/fp8"
)

var _ = implement((*builder).matMul)

// matMul writes one GEMM of the matrix engine. Epilogues that the engine lacks become
// elementwise kernels after it, which the compiler overlaps with the engine.
//
// An FP8 GEMM gets its scales as tensors (fp8_gemm, operands as in PyTorch's bridge: A, B
// and their scale_inv). The engine could apply some powers of two as exponents, but those
// are compiled in, so every change of a scale would recompile. A scale known to be 1
// needs no operand.
func (b *builder) matMul(o *backend.MatMul) error {
	for _, t := range []*backend.Tensor{o.A, o.B} {
		if !t.DType.IsQuantized() && t.Scale != nil {
			return b.unsupported("%s has a scale: only FP8 operands of a GEMM may have one", t)
		}
	}
	if x, y := o.Encodings(); o.A.DType.IsQuantized() && !b.spec.Multiplies(x, y) {
		return b.unsupported("%s × %s, A is %s and B is %s", x, y, o.A, o.B)
	}
	m, n, _ := o.Dims()
	x, y := b.matrixOf(o.A), b.matrixOf(o.B)
	params := libsynapse.GemmParams(o.TransA, o.TransB)
	plain := o.Out.DType == fp8.BF16 && o.A.DType != fp8.F32 && o.RowScale == nil && o.ColScale == nil && o.Residual == nil && !o.Accumulate
	typ := libsynapse.F32
	if plain {
		typ = libsynapse.BF16
	}
	sizes := []uint64{uint64(n), uint64(m)}
	var result value
	if o.A.DType.IsQuantized() && (o.A.Scale.Value != 1 || o.B.Scale.Value != 1) {
		result = b.node("fp8_gemm_"+typ.String(), params, typ, sizes, x, y, b.in(o.A.Scale), b.in(o.B.Scale))
	} else {
		result = b.node("gemm", params, typ, sizes, x, y)
	}
	if plain {
		b.out(o.Out, result)
		return nil
	}
	return b.epilogue(o.Epilogue(nil), result)
}

// matrixOf returns an operand of a GEMM, which is always a matrix.
func (b *builder) matrixOf(t *backend.Tensor) value {
	return b.reshape(b.in(t), uint64(t.Cols()), uint64(t.Rows()))
}

var _ = implement(func(b *builder, o *backend.Epilogue) error { return b.epilogue(o, b.f32(o.X)) })

// epilogue stores a GEMM's F32 result v, see backend.Epilogue.
func (b *builder) epilogue(o *backend.Epilogue, v value) error {
	rows, cols := uint64(o.Out.Rows()), uint64(o.Out.Cols())
	v = b.reshape(v, cols, rows)
	if o.RowScale != nil {
		v = b.mul(v, b.reshape(b.f32(o.RowScale), 1, rows))
	}
	if o.ColScale != nil {
		v = b.mul(v, b.reshape(b.f32(o.ColScale), cols, 1))
	}
	if o.Residual != nil {
		v = b.add(v, b.f32(o.Residual))
	}
	if o.Accumulate {
		v = b.add(v, b.f32(o.Out))
	}
	b.store([]backend.Cast{{Out: o.Out, Scale: o.OutScale, Amax: o.Amax}}, v)
	return nil
}
