package emu

import (
	"fmt"
	"strings"

	"octet/backend"
	"octet/backend/arith"
	"octet/backend/emu/gemm"
	"octet/backend/emu/memory"
	"octet/fp8"
)

var _ = implementOp(row{blockScaled: []string{"A", "B"}}, (*binder).matMul)

// matMul binds a MatMul to a gemm.
func (b *binder) matMul(n *backend.Node, o *backend.MatMul) (kernel, error) {
	var sum *arith.Sum // of the device model
	if m := b.model; m != nil && o.A.DType.IsQuantized() {
		x, y := o.Encodings()
		if sum = m.SumOf(x, y); sum == nil {
			return nil, b.unsupported("%s × %s, A is %s and B is %s; it multiplies %s", x, y, o.A, o.B, listed(m.Pairs))
		}
	}
	blocked := scaledByBlock(o.A) || scaledByBlock(o.B)
	multiply := gemm.New
	if b.amx && gemm.AMXMultiplies(o.A.DType, o.B.DType) {
		multiply = gemm.NewAMX
	}
	run := 0 // promotion interval in elements of k; 0: none
	if sum != nil {
		multiply = gemm.NewFused(*sum)
		if o.Accum == backend.Promoted {
			run = b.model.Promote
		}
	}
	left, right := b.matrix(o.A), b.matrix(o.B)
	if blocked && o.A.Outer == nil { // ScaleBlocks takes it
		left.Scale = nil
	}
	if blocked && o.B.Outer == nil {
		right.Scale = nil
	}
	g, err := multiply(b.pool, left, o.TransA, right, o.TransB, b.matrix(o.Out))
	switch {
	case err != nil:
	case blocked:
		err = g.ScaleBlocks(b.blockScales(o.A), b.blockScales(o.B), run)
	case run > 0 && run < g.K:
		err = g.ScaleBlocks(memory.BlockScales{}, memory.BlockScales{}, run)
	}
	if err == nil && b.accumulator != nil && o.A.DType.IsInteger() {
		err = g.Accumulate(*b.accumulator)
	}
	if err != nil {
		return nil, b.unsupported("%w; A is %s, B is %s", err, o.A, o.B)
	}
	e := gemm.Epilogue{
		RowScale: b.f32(o.RowScale), ColScale: b.f32(o.ColScale),
		Accumulate: o.Accumulate, OutScale: b.f32(o.OutScale), Used: b.i32(o.Used),
	}
	if o.Residual != nil {
		e.Residual = b.matrix(o.Residual)
	}
	if o.Amax != nil {
		e.Amax = &b.f32(o.Amax)[0]
	}
	b.gemms[n] = gemm.Bound{GEMM: g, Epilogue: e}
	return compute(func() { g.Run(e) }), nil
}

// listed returns a text that lists pairs of formats.
func listed(pairs [][2]fp8.DType) string {
	var texts []string
	for _, p := range pairs {
		texts = append(texts, fmt.Sprintf("%s × %s", p[0], p[1]))
	}
	return strings.Join(texts, ", ")
}
