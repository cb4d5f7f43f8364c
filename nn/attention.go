package nn

import (
	"slices"

	"octet/backend"
	"octet/fp8"
)

// Attention is grouped-query causal self-attention with rotary positions.
type Attention struct {
	scope      string
	q, k, v, o *Linear
	headDim    int
	theta      float64

	input          *slot // output of the preceding norm, which q, k and v read
	output         *slot // read by o_proj and by the backward
	dq, dk, dv     *slot
	heads, kvHeads int
}

func (m *Model) attention(scope string) *Attention {
	c := m.Config
	width, kv := c.Dim, c.KVHeads*c.HeadDim()
	a := &Attention{scope: scope, headDim: c.HeadDim(), theta: c.RopeTheta, heads: c.Heads, kvHeads: c.KVHeads}
	a.q = m.linear(scope+".q_proj", c.Dim, width, c.InitStd)
	a.k = m.linear(scope+".k_proj", c.Dim, kv, c.InitStd)
	a.v = m.linear(scope+".v_proj", c.Dim, kv, c.InitStd)
	a.o = m.linear(scope+".o_proj", width, c.Dim, c.residualStd())
	a.input = m.Scales.slot(scope+".input", slices.Concat(a.q.inputs(), a.k.inputs(), a.v.inputs())...)
	a.output = m.Scales.slot(scope+".output", append(a.o.inputs(), m.plainCast())...)
	a.dq, a.dk, a.dv = m.gradSlot(a.q), m.gradSlot(a.k), m.gradSlot(a.v)
	for _, l := range []*Linear{a.q, a.k, a.v, a.o} {
		m.cacheWeights(l)
	}
	return a
}

type attentionSaved struct {
	x, out       *copySet
	q, k, v, lse *backend.Tensor // q and k after the rotation
}

// Forward appends residual + attention(x). layer selects the KV cache.
func (a *Attention) Forward(p *Pass, layer int, x *copySet, residual *backend.Tensor) (*backend.Tensor, *attentionSaved) {
	q := p.at(a.scope)
	s := &attentionSaved{x: x}
	s.q = a.rotate(q, "q", a.q.Forward(q, x, nil))
	s.k = a.rotate(q, "k", a.k.Forward(q, x, nil))
	s.v = a.v.Forward(q, x, nil)
	op := &backend.Attention{Q: s.q, K: s.k, V: s.v, Batch: p.Batch, HeadDim: a.headDim}
	if p.Cache != nil {
		op.K, op.V = p.Cache.K[layer], p.Cache.V[layer]
		op.Control = p.Control
		q.Add(&backend.CacheWrite{X: s.k, Cache: op.K, Control: p.Control, Batch: p.Batch})
		q.Add(&backend.CacheWrite{X: s.v, Cache: op.V, Control: p.Control, Batch: p.Batch})
	}
	if p.Mode != Frozen {
		s.lse = q.Temp("lse", fp8.F32, p.Batch*a.heads, p.Seq)
		op.LSE = s.lse
	}
	e := p.emit(a.output, s.q.Rows(), s.q.Cols())
	op.Out = e.casts
	q.Add(op)
	s.out = e.done(q)
	return a.o.Forward(q, s.out, residual), s
}

func (a *Attention) rotate(p *Pass, name string, x *backend.Tensor) *backend.Tensor {
	y, cast := p.store(name, x.Rows(), x.Cols())
	op := &backend.Rope{X: x, Out: cast, Seq: p.Seq, HeadDim: a.headDim, Theta: a.theta}
	if p.Cache != nil {
		op.Control = p.Control
	}
	p.Add(op)
	return y
}

// Backward appends the gradients of all weights and returns dx, the gradient of
// the norm's output.
func (a *Attention) Backward(p *Pass, s *attentionSaved, dy *copySet) *backend.Tensor {
	q := p.at(a.scope)
	a.o.Wgrad(q, s.out, dy, nil)
	dOut := q.temp("output.grad", s.q.Rows(), s.q.Cols())
	a.o.Dgrad(q, dy, dOut, false)

	dq, dqCast := q.store("q.grad", s.q.Rows(), s.q.Cols())
	dk, dkCast := q.store("k.grad", s.k.Rows(), s.k.Cols())
	dv := p.emit(a.dv, s.v.Rows(), s.v.Cols())
	q.Add(&backend.AttentionGrad{
		DOut: dOut, Q: s.q, K: s.k, V: s.v, O: p.plain(s.out), LSE: s.lse,
		DQ: dqCast, DK: dkCast, DV: dv.casts, Batch: p.Batch, HeadDim: a.headDim,
	})
	gv := dv.done(q)
	gq := a.rotateBack(q, dq, a.dq)
	gk := a.rotateBack(q, dk, a.dk)

	dx := q.Temp("input.grad", fp8.F32, p.Tokens(), a.q.weight.Master.Cols())
	for i, l := range []struct {
		*Linear
		dy *copySet
	}{{a.q, gq}, {a.k, gk}, {a.v, gv}} {
		l.Wgrad(q, s.x, l.dy, nil)
		l.Dgrad(q, l.dy, dx, i > 0)
	}
	return dx
}

func (a *Attention) rotateBack(p *Pass, g *backend.Tensor, to *slot) *copySet {
	e := p.emit(to, g.Rows(), g.Cols())
	p.Add(&backend.Rope{X: g, Out: e.casts, Seq: p.Seq, HeadDim: a.headDim, Theta: a.theta, Inverse: true})
	return e.done(p)
}
