package nn

import (
	"octet/backend"
	"octet/fp8"
)

// RMSNorm divides each token by its root mean square and multiplies by a gain.
type RMSNorm struct {
	scope string
	gain  *Param
	eps   float32
}

// RMSNorm declares a norm of tokens that are dim wide.
func (b *Base) RMSNorm(scope string, dim int, eps float64) *RMSNorm {
	return &RMSNorm{scope: scope, eps: float32(eps), gain: b.param(b.ParamPrefix+scope+".weight", false, 0, dim)}
}

// normSaved holds the tensors that the backward reads.
type normSaved struct{ x, invRMS *backend.Tensor }

// Forward appends the norm of x, stored in the copies of out.
func (n *RMSNorm) Forward(p *Pass, x *backend.Tensor, out *Slot) (*Value, *normSaved) {
	saved := &normSaved{x: x}
	if p.Mode != Frozen {
		saved.invRMS = p.root.Temp(n.scope+".inv_rms", fp8.F32, x.Rows())
	}
	return p.At(n.scope).Store(out, x.Rows(), x.Cols(), func(out []backend.Cast) backend.Op {
		return &backend.RMSNorm{X: x, Gain: n.gain.Master, Out: out, InvRMS: saved.invRMS, Eps: n.eps}
	}), saved
}

// Backward appends the gradient of x plus bypass, the gradient of the residual
// branch, stored in the copies of dx.
func (n *RMSNorm) Backward(p *Pass, saved *normSaved, dy, bypass *backend.Tensor, dx *Slot) *Value {
	q := p.At(n.scope)
	v := q.Open(dx, dy.Rows(), dy.Cols())
	q.Add(&backend.RMSNormGrad{
		DOut: dy, X: saved.x, Gain: n.gain.Master, InvRMS: saved.invRMS,
		Residual: bypass, DX: v.Casts(), DGain: n.gain.Grad, Accumulate: !p.First,
	})
	q.complete(n.gain)
	q.Close(v)
	return v
}
