package gaudi

import "octet/backend"

// build writes an op's nodes. Collectives have none: the device runs them between
// units.
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
	case *backend.SmoothScale:
		return b.smoothScale(o)
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
	default:
		return b.unsupported("%T has no kernel here", op)
	}
}
