package nn

import (
	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// MLP is w3·(w1·x ⊙ silu(w2·x)), with w1 = up_proj, w2 = gate_proj and
// w3 = down_proj, or w3·f(w1·x) for the ungated activations. For
// Smooth-SwiGLU see smooth.go.
type MLP struct {
	scope          string
	up, gate, down *Linear // gate is nil for an ungated activation
	kind           backend.ActivationKind
	ffn, layer     int

	input      *slot // read by up and gate
	hidden     *slot // read by down
	dUp, dGate *slot

	smooth   recipe.Smooth // zero: plain SwiGLU
	channels *channels     // state of per-channel smoothing, else nil
	tokens   *slot         // with per-token smoothing r ⊙ dY, which down's backward reads; else nil
}

func (m *Model) mlp(scope string) *MLP {
	c := m.Config
	l := &MLP{scope: scope, ffn: c.FFN, layer: len(m.layers)}
	l.up = m.linear(scope+".up_proj", c.Dim, c.FFN, c.InitStd)
	inputs := l.up.inputs()
	if c.Activation.gated() {
		l.gate = m.linear(scope+".gate_proj", c.Dim, c.FFN, c.InitStd)
		inputs = append(inputs, l.gate.inputs()...)
		l.dGate = m.gradSlot(l.gate)
		m.cacheWeights(l.gate)
	}
	if c.Activation == ReLU {
		l.kind = backend.ReLU
	}
	l.down = m.linear(scope+".down_proj", c.FFN, c.Dim, c.residualStd())
	l.input = m.Scales.slot(scope+".input", inputs...)
	l.hidden = m.Scales.slot(scope+".hidden", l.down.inputs()...)
	l.dUp = m.gradSlot(l.up)
	m.cacheWeights(l.up)
	if c.Activation == SmoothSwiGLU && (l.down.fprop.a.DType.IsFP8() || l.down.wgrad.b.DType.IsFP8()) {
		l.smooth = m.Recipe.Smooth
	}
	if l.smooth.On() && !l.smooth.Form.PerToken() {
		l.channels = m.smoothChannels(l)
		m.wholeOf(l.down.weight)
	} else {
		m.cacheWeights(l.down)
	}
	return l
}

// outputGradSlot declares the slot of dY, with a plain copy for the layer below.
// With per-token smoothing, down's GEMMs read r ⊙ dY instead, which has its own
// slot.
func (m *Model) outputGradSlot(l *MLP) *slot {
	if l.smooth.Form.PerToken() {
		l.tokens = m.gradSlot(l.down)
		return m.Scales.slot(l.scope+".output.grad", m.plainCast())
	}
	return m.Scales.slot(l.down.scope+".grad", append(l.down.grads(), m.plainCast())...)
}

type mlpSaved struct {
	x, hidden *copySet
	up, gate  *backend.Tensor
	w3        *copySet        // W3′ of per-channel smoothing, or nil
	c, invC   *backend.Tensor // smoothing scales per channel and 1/c, or nil
	r         *backend.Tensor // smoothing scales per token, or nil
}

// Forward appends residual + mlp(x); residual may be nil.
func (l *MLP) Forward(p *Pass, x *copySet, residual *backend.Tensor) (*backend.Tensor, *mlpSaved) {
	q := p.at(l.scope)
	s := &mlpSaved{x: x, up: l.up.Forward(q, x, nil)}
	if l.gate != nil {
		s.gate = l.gate.Forward(q, x, nil)
	}
	l.channelHealth(q, s)
	if l.channels != nil {
		l.forwardPerChannel(q, s)
		return l.down.forward(q, s.hidden, s.w3.as(l.down.fprop.b), nil, residual), s
	}
	e := p.emit(l.hidden, p.Tokens(), l.ffn)
	switch {
	case l.gate == nil:
		q.Add(&backend.Activation{X: s.up, Out: e.casts, Kind: l.kind})
	case l.smooth.Form.PerToken():
		l.forwardPerToken(q, s, e.casts)
	default:
		q.Add(&backend.SwiGLU{Up: s.up, Gate: s.gate, Out: e.casts})
	}
	s.hidden = e.done(q)
	return l.down.forward(q, s.hidden, l.down.cachedAs(l.down.fprop.b), s.r, residual), s
}

// Backward appends the gradients of all weights and returns dx, the gradient of
// the norm's output.
func (l *MLP) Backward(p *Pass, s *mlpSaved, dy *copySet) *backend.Tensor {
	q := p.at(l.scope)
	var w3 *backend.Tensor
	if s.w3 != nil {
		w3 = s.w3.as(l.down.dgrad.b)
	} else {
		w3 = l.down.cachedAs(l.down.dgrad.b)
	}
	if s.r != nil {
		dy = l.scaledGrad(q, s, dy)
	}
	// wgrad computes the gradient of W3′ = W3·c: its columns times c are that of W3.
	l.down.Wgrad(q, s.hidden, dy, s.c)
	dh := q.temp("hidden.grad", p.Tokens(), l.ffn)
	l.down.dgradOf(q, dy, w3, dh, false)

	dx := q.Temp("input.grad", fp8.F32, p.Tokens(), l.up.weight.Master.Cols())
	eUp := p.emit(l.dUp, p.Tokens(), l.ffn)
	if l.gate == nil {
		q.Add(&backend.ActivationGrad{DOut: dh, X: s.up, DX: eUp.casts, Kind: l.kind})
		dUp := eUp.done(q)
		l.up.Wgrad(q, s.x, dUp, nil)
		l.up.Dgrad(q, dUp, dx, false)
		return dx
	}
	eGate := p.emit(l.dGate, p.Tokens(), l.ffn)
	q.Add(&backend.SwiGLUGrad{
		DOut: dh, Up: s.up, Gate: s.gate, InvC: s.invC, TokenScale: s.r,
		DUp: eUp.casts, DGate: eGate.casts,
	})
	dUp, dGate := eUp.done(q), eGate.done(q)
	l.up.Wgrad(q, s.x, dUp, nil)
	l.up.Dgrad(q, dUp, dx, false)
	l.gate.Wgrad(q, s.x, dGate, nil)
	l.gate.Dgrad(q, dGate, dx, true)
	return dx
}

// MLPAndGrads appends the forward and backward of one layer's MLP alone, for
// the study of one layer. x is its normalised input and dy the gradient of its
// output, both [tokens, dim] in FP32. It returns the output and the gradient of
// x; the weights' gradients go to Param.Grad.
func (m *Model) MLPAndGrads(p *Pass, layer int, x, dy *backend.Tensor) (y, dx *backend.Tensor) {
	if p.First {
		m.clearRecords(p)
	}
	l := m.layers[layer]
	cast := func(p *Pass, t *backend.Tensor, to *slot) *copySet {
		e := p.emit(to, t.Rows(), t.Cols())
		p.Add(&backend.Quantize{X: t, Out: e.casts})
		return e.done(p)
	}
	y, saved := l.mlp.Forward(p, cast(p, x, l.mlp.input), nil)
	q := p.backward()
	return y, l.mlp.Backward(q, saved, cast(q, dy, l.out))
}
