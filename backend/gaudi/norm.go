package gaudi

import (
	"octet/backend"
	"octet/csrc/libsynapse"
)

// RMSNorm is SynapseAI's kernel, with all operands in F32. For operands of unequal types
// PyTorch's bridge expects F32 results (RMSNormMeta), and for BF16 operands BF16 results,
// which a cast to FP8 would round a second time. Rows have three dimensions, {cols, rows,
// 1}: with two, the kernel is wrong before SynapseAI 1.21, according to vLLM's plugin for
// Gaudi.

var _ = implement((*builder).rmsNorm)

// rmsNorm always requests the inverse root mean square, as the bridge does.
func (b *builder) rmsNorm(o *backend.RMSNorm) error {
	x, gain := b.batched(b.wide(o.X)), b.gain(o.Gain)
	outs := b.nodes("rms_norm_ex_fwd_f32", libsynapse.RMSNormParams(o.Eps),
		[]value{{typ: libsynapse.F32, sizes: x.sizes}, {typ: libsynapse.F32, sizes: []uint64{1, x.sizes[1], 1}}}, x, gain)
	b.store(o.Out, b.reshape(outs[0], x.sizes[:2]...))
	if o.InvRMS != nil {
		b.out(o.InvRMS, outs[1])
	}
	return nil
}

// batched adds a third dimension of size 1.
func (b *builder) batched(v value) value { return b.reshape(v, v.sizes[0], v.sizes[1], 1) }

// gain returns the per-column gain as the one-dimensional list that the kernels take.
func (b *builder) gain(t *backend.Tensor) value {
	return b.reshape(b.f32(t), uint64(t.Elems()))
}

var _ = implement((*builder).rmsNormGrad)

func (b *builder) rmsNormGrad(o *backend.RMSNormGrad) error {
	x, gain := b.batched(b.wide(o.X)), b.gain(o.Gain)
	inv := b.reshape(b.f32(o.InvRMS), 1, x.sizes[1], 1)
	outs := b.nodes("rms_norm_ex_bwd_f32", libsynapse.RMSNormGradParams(),
		[]value{{typ: libsynapse.F32, sizes: x.sizes}, {typ: libsynapse.F32, sizes: gain.sizes}},
		b.batched(b.wide(o.DOut)), x, gain, inv)
	dx, dGain := b.reshape(outs[0], x.sizes[:2]...), b.reshape(outs[1], gain.elems(), 1)
	if o.Residual != nil {
		dx = b.add(b.wide(o.Residual), dx)
	}
	b.store(o.DX, dx)
	if o.Accumulate {
		dGain = b.add(b.vector(o.DGain), dGain)
	}
	b.out(o.DGain, dGain)
	return nil
}
