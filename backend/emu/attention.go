package emu

import (
	"octet/backend"
	"octet/backend/emu/attention"
	"octet/backend/emu/gemm"
)

var _ = implement((*binder).attention)

func (b *binder) attention(o *backend.Attention) func() {
	return attention.New(b.pool, gemm.Kernels()[0], b.attentionOperands(o))
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
	return attention.NewGrad(b.pool, gemm.Kernels()[0], operands, operands.Split(b.pool))
}

func (b *binder) attentionGradOperands(o *backend.AttentionGrad) attention.GradOperands {
	return attention.GradOperands{
		DOut: b.matrix(o.DOut), Q: b.matrix(o.Q), K: b.matrix(o.K), V: b.matrix(o.V), O: b.matrix(o.O),
		LSE: b.f32(o.LSE), Delta: b.shared(o.LSE.Elems()), DQ: b.output(o.DQ), DK: b.output(o.DK), DV: b.output(o.DV),
		Start: b.i32(o.Start), Batch: o.Batch, HeadDim: o.HeadDim,
	}
}
