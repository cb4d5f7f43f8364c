package nn

import (
	"octet/backend"
	"octet/fp8"
)

// RMSNorm divides each token by its root mean square and multiplies by a gain.
type RMSNorm struct {
	scope string
	input *Slot  // x as it is saved for the backward
	gain  *Param // nil: frozen at 1
	eps   float32
}

// RMSNorm declares a norm of tokens that are dim wide.
func (b *Base) RMSNorm(scope string, dim int, eps float64) *RMSNorm {
	return &RMSNorm{scope: scope, input: b.savedSlot(scope + ".input"), eps: float32(eps), gain: b.param(b.ParamPrefix+scope+".weight", false, 0, dim)}
}

// normSaved holds the tensors that the backward reads.
type normSaved struct {
	x            *Value
	invRMS, gain *backend.Tensor
}

// Forward appends the norm of x, stored in the copies of out.
func (n *RMSNorm) Forward(p *Pass, x *backend.Tensor, out *Slot) (*Value, *normSaved) {
	q := p.At(n.scope)
	v := q.Open(out, x.Rows(), x.Cols())
	saved := n.forward(q, x, v.Casts())
	q.Close(v)
	return v, saved
}

// forward appends the norm of the rows of x, stored through casts.
func (n *RMSNorm) forward(q *Pass, x *backend.Tensor, out []backend.Cast) *normSaved {
	saved := &normSaved{}
	saved.x, x = q.save(n.input, x)
	if q.Mode != Frozen {
		saved.invRMS = q.root.Temp(n.scope+".inv_rms", fp8.F32, x.Rows())
	}
	if n.gain == nil {
		saved.gain = q.filled("gain", x.Cols(), 1)
	} else {
		saved.gain = n.gain.Master
	}
	q.Add(&backend.RMSNorm{X: x, Gain: saved.gain, Out: out, InvRMS: saved.invRMS, Eps: n.eps})
	return saved
}

// Backward appends the gradient of x plus bypass, the gradient of the residual
// branch, stored in the copies of dx.
func (n *RMSNorm) Backward(p *Pass, saved *normSaved, dy, bypass *backend.Tensor, dx *Slot) *Value {
	q := p.At(n.scope)
	v := q.Open(dx, dy.Rows(), dy.Cols())
	n.backward(q, saved, dy, bypass, v.Casts())
	q.Close(v)
	return v
}

// backward appends the gradient of the gain, and that of x plus bypass through casts.
func (n *RMSNorm) backward(q *Pass, saved *normSaved, dy, bypass *backend.Tensor, dx []backend.Cast) {
	op := &backend.RMSNormGrad{
		DOut: dy, X: q.read(saved.x, ".backward"), Gain: saved.gain, InvRMS: saved.invRMS, Residual: bypass, DX: dx,
	}
	if n.gain == nil {
		op.DGain = q.Temp("gain.grad", fp8.F32, dy.Cols()) // unused
		q.Add(op)
		return
	}
	op.DGain, op.Accumulate = n.gain.Grad, !q.First
	q.Add(op)
	q.complete(n.gain)
}

// QKNorm says whether queries and keys are normalized: each head by the root mean square of its
// elements, before the rotation, with one gain for all heads.
type QKNorm string

// The values of QKNorm. The empty one counts as none.
const (
	NoQKNorm      QKNorm = "none"
	LearnedQKNorm QKNorm = "learned" // as in Qwen3
	FrozenQKNorm  QKNorm = "frozen"  // gains of 1 that are no parameters, as in FOG
)

// headNorm declares the norm of the queries or keys, or returns nil.
func (b *Base) headNorm(scope string, headDim int, s AttentionShape) *RMSNorm {
	switch s.QKNorm {
	case LearnedQKNorm:
		return b.RMSNorm(scope, headDim, s.NormEps)
	case FrozenQKNorm:
		return &RMSNorm{scope: scope, input: b.savedSlot(scope + ".input"), eps: float32(s.NormEps)}
	}
	return nil
}

// heads appends the norm of the heads of x [tokens, heads·headDim]. A nil norm returns x.
func (n *RMSNorm) heads(p *Pass, x *backend.Tensor, headDim int) (*backend.Tensor, *normSaved) {
	if n == nil {
		return x, nil
	}
	q := p.At(n.scope)
	y := q.temp("out", x.Rows(), x.Cols())
	return y, n.forward(q, x.Regroup(headDim), []backend.Cast{{Out: y.Regroup(headDim)}})
}
