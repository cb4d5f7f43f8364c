package gaudi

import "octet/backend"

// build writes an op's nodes. Collectives run between units and have only the nodes that
// come before them.
func (b *builder) build(op backend.Op) error {
	switch o := op.(type) {
	case *backend.MatMul:
		return b.matMul(o)
	case *backend.Epilogue:
		return b.epilogue(o, b.f32(o.X))
	case *backend.Quantize:
		return b.quantize(o)
	case *backend.Amax:
		return b.amax(o)
	case *backend.UpdateScale:
		return b.updateScale(o)
	case *backend.PushHistory:
		return b.pushHistory(o)
	case *backend.Fill:
		return b.fill(o)
	case *backend.Embed:
		return b.embed(o)
	case *backend.EmbedGrad:
		return b.embedGrad(o)
	case *backend.Add:
		return b.addition(o)
	case *backend.RMSNorm:
		return b.rmsNorm(o)
	case *backend.RMSNormGrad:
		return b.rmsNormGrad(o)
	case *backend.Rope:
		return b.rope(o)
	case *backend.Attention:
		return b.attention(o)
	case *backend.AttentionGrad:
		return b.attentionGrad(o)
	case *backend.CacheWrite:
		return b.cacheWrite(o)
	case *backend.SwiGLU:
		return b.swiGLU(o)
	case *backend.SwiGLUAmax:
		return b.swiGLUAmax(o)
	case *backend.SwiGLUGrad:
		return b.swiGLUGrad(o)
	case *backend.SmoothScale:
		return b.smoothScale(o)
	case *backend.Activation:
		return b.activation(o)
	case *backend.ActivationGrad:
		return b.activationGrad(o)
	case *backend.CrossEntropy:
		return b.crossEntropy(o)
	case *backend.Sum:
		return b.total(o)
	case *backend.SumSquares:
		return b.sumSquares(o)
	case *backend.StepGate:
		return b.stepGate(o)
	case *backend.AdamW:
		return b.adamW(o)
	case *backend.CastHealth:
		return b.castHealth(o)
	case *backend.RowCosine:
		return b.rowCosine(o)
	case *backend.AllReduce:
		return b.magnitudes(o)
	default:
		return b.unsupported("%T has no Gaudi kernel", op)
	}
}
