package emu

import (
	"octet/backend"
	"octet/backend/emu/attention"
	"octet/backend/emu/gemm"
	"octet/backend/emu/memory"
)

var _ = implement((*binder).attention)

func (b *binder) attention(o *backend.Attention) func() {
	operands := b.attentionOperands(o)
	return attention.New(b.pool, b.attentionUnit(&operands.Q, &operands.K, &operands.V), operands)
}

// attentionUnit returns the unit for some operands.
func (b *binder) attentionUnit(operands ...*memory.Matrix) attention.Unit {
	if b.amx && attention.AMXMultiplies(operands...) {
		return attention.AMX(gemm.AMXKernels()[0])
	}
	return attention.FP32(gemm.Kernels()[0])
}

func (b *binder) attentionOperands(o *backend.Attention) attention.Operands {
	return attention.Operands{
		Q: b.matrix(o.Q), K: b.matrix(o.K), V: b.matrix(o.V), Out: b.output(o.Out), LSE: b.f32(o.LSE),
		Start: b.i32(o.Start), Control: b.i32(o.Control), Batch: o.Batch, HeadDim: o.HeadDim,
	}
}

var _ = implement((*binder).attentionGrad)

func (b *binder) attentionGrad(o *backend.AttentionGrad) func() {
	operands := b.attentionGradOperands(o)
	unit := b.attentionUnit(&operands.Q, &operands.K, &operands.V, &operands.DOut)
	return attention.NewGrad(b.pool, unit, operands, operands.Split(b.pool))
}

func (b *binder) attentionGradOperands(o *backend.AttentionGrad) attention.GradOperands {
	return attention.GradOperands{
		DOut: b.matrix(o.DOut), Q: b.matrix(o.Q), K: b.matrix(o.K), V: b.matrix(o.V), O: b.matrix(o.O),
		LSE: b.f32(o.LSE), Delta: b.shared(o.LSE.Elems()), DQ: b.output(o.DQ), DK: b.output(o.DK), DV: b.output(o.DV),
		Start: b.i32(o.Start), Batch: o.Batch, HeadDim: o.HeadDim,
	}
}
