package emu

import (
	"fmt"
	"slices"
	"strings"

	"octet/backend"
	"octet/backend/emu/gemm"
	"octet/fp8"
)

var _ = implementOp(row{blockScaled: []string{"A", "B"}}, (*binder).matMul)

// matMul binds a MatMul to a gemm. Per-tensor scales multiply the finished sum as one
// alpha, which is read in each run. AMX's arithmetic takes only operands with per-tensor
// scales, and no F32.
func (b *binder) matMul(_ *backend.Node, o *backend.MatMul) (kernel, error) {
	if m := b.model; m != nil && o.A.DType.IsFP8() && !slices.Contains(m.Pairs, [2]fp8.DType{o.A.DType, o.B.DType}) {
		return nil, b.unsupported("%s × %s, A is %s and B is %s; it multiplies %s", o.A.DType, o.B.DType, o.A, o.B, listed(m.Pairs))
	}
	blocked := scaledByBlock(o.A) || scaledByBlock(o.B)
	multiply := gemm.New
	if b.amx && !blocked && gemm.AMXMultiplies(o.A.DType, o.B.DType) {
		multiply = gemm.NewAMX
	}
	run := 0 // promotion interval in elements of k; 0: none
	if m := b.model; m != nil && o.A.DType.IsFP8() {
		multiply = gemm.NewFused(m.Sum)
		if o.Accum == backend.Promoted {
			run = m.Promote
		}
	}
	g, err := multiply(b.pool, b.matrixOf(o.A), o.TransA, b.matrixOf(o.B), o.TransB, b.matrixOf(o.Out))
	switch {
	case err != nil:
	case blocked:
		err = g.ScaleBlocks(b.blockScales(o.A), b.blockScales(o.B), run)
	case run > 0 && run < g.K:
		err = g.ScaleBlocks(gemm.BlockScales{}, gemm.BlockScales{}, run)
	}
	if err != nil {
		return nil, b.unsupported("%w; A is %s, B is %s", err, o.A, o.B)
	}
	e := gemm.Epilogue{
		Alpha: 1, RowScale: b.f32(o.RowScale), ColScale: b.f32(o.ColScale),
		Accumulate: o.Accumulate, OutScale: b.f32(o.OutScale),
	}
	if o.Residual != nil {
		e.Residual = b.matrixOf(o.Residual)
	}
	if o.Amax != nil {
		e.Amax = &b.f32(o.Amax)[0]
	}
	if blocked {
		return compute(func() { g.Run(e) }), nil
	}
	scaleA, scaleB := b.f32(o.A.Scale), b.f32(o.B.Scale)
	return compute(func() {
		e.Alpha = scaleValue(scaleA) * scaleValue(scaleB)
		g.Run(e)
	}), nil
}

// listed returns a text that lists pairs of formats.
func listed(pairs [][2]fp8.DType) string {
	var texts []string
	for _, p := range pairs {
		texts = append(texts, fmt.Sprintf("%s × %s", p[0], p[1]))
	}
	return strings.Join(texts, ", ")
}

// scaledByBlock reports whether t has scales other than one per-tensor FP32 scale.
func scaledByBlock(t *backend.Tensor) bool {
	return t.Scale != nil && (t.Block != backend.PerTensor || t.Scale.DType != fp8.F32)
}

// blockScales binds the scales of an operand.
func (b *binder) blockScales(t *backend.Tensor) gemm.BlockScales {
	s := gemm.BlockScales{Rows: t.Block.Rows, Cols: t.Block.Cols}
	_, s.Across = t.Block.ScaleShape(t.Rows(), t.Cols())
	switch {
	case t.Scale == nil:
	case t.Scale.DType == fp8.E8M0:
		s.E8M0 = slice[uint8](b, t.Scale)
	default:
		s.F32 = b.f32(t.Scale)
	}
	return s
}
