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

func (m *Model) rmsNorm(scope string) *RMSNorm {
	return &RMSNorm{
		scope: scope, eps: float32(m.Config.NormEps),
		gain: m.param("model."+scope+".weight", false, 0, m.Config.Dim),
	}
}

// normSaved holds the tensors that the backward reads.
type normSaved struct{ x, invRMS *backend.Tensor }

// Forward appends the norm of x, stored in the copies of out.
func (n *RMSNorm) Forward(p *Pass, x *backend.Tensor, out *slot) (*copySet, *normSaved) {
	saved := &normSaved{x: x}
	if p.Mode != Frozen {
		saved.invRMS = p.root.Temp(n.scope+".inv_rms", fp8.F32, x.Rows())
	}
	e := p.emit(out, x.Rows(), x.Cols())
	q := p.at(n.scope)
	q.Add(&backend.RMSNorm{X: x, Gain: n.gain.Master, Out: e.casts, InvRMS: saved.invRMS, Eps: n.eps})
	return e.done(q), saved
}

// Backward appends the gradient of x plus bypass, the gradient of the residual
// branch, stored in the copies of dx.
func (n *RMSNorm) Backward(p *Pass, saved *normSaved, dy, bypass *backend.Tensor, dx *slot) *copySet {
	e := p.emit(dx, dy.Rows(), dy.Cols())
	q := p.at(n.scope)
	q.Add(&backend.RMSNormGrad{
		DOut: dy, X: saved.x, Gain: n.gain.Master, InvRMS: saved.invRMS,
		Residual: bypass, DX: e.casts, DGain: n.gain.Grad, Accumulate: !p.First,
	})
	q.complete(n.gain)
	return e.done(q)
}
