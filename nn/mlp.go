package nn

import (
	"fmt"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// MLP is w3·(w1·x ⊙ silu(w2·x)), with w1 = up_proj, w2 = gate_proj and
// w3 = down_proj, or w3·f(w1·x, w2·x) or w3·f(w1·x) for other activations, see
// Nonlinearity. For Smooth-SwiGLU see smooth.go.
type MLP struct {
	scope, owner   string
	up, gate, down *Linear // gate is nil for an ungated activation
	activation     Activation
	f              Nonlinearity // of activation
	err            error        // of an unknown activation, which Build returns
	ffn, layer     int

	input      *Slot // read by up and gate
	u, g       *Slot // results of up and gate as they are saved for the backward; g is nil without gate
	hidden     *Slot // read by down
	dUp, dGate *Slot

	smooth   recipe.Smooth // zero: plain SwiGLU
	channels *channels     // state of per-channel smoothing, else nil
	tokens   *Slot         // with per-token smoothing r ⊙ dY, which down's backward reads; else nil
}

// MLPShape is the size of an MLP. Widths are in elements.
type MLPShape struct {
	Dim, FFN        int
	Activation      Activation
	InitStd, OutStd float64 // of the initial weights; OutStd of down_proj
}

// MLP declares an MLP. It smooths if the activation is SmoothSwiGLU and down_proj reads
// FP8, in the form that the recipe gives.
func (b *Base) MLP(scope string, c MLPShape) *MLP {
	return b.mlp(scope, parent(scope), c, func(module string) string { return scope + "." + module })
}

// mlp is MLP. owner is the path that telemetry names it by, and path returns that of the weight of
// a module: "up_proj".
func (b *Base) mlp(scope, owner string, c MLPShape, path func(module string) string) *MLP {
	linear := func(module string, hidden bool, in, out int, std float64) *Linear {
		return b.linearNamed(path(module), recipe.Layer{Scope: scope + "." + module, Hidden: hidden}, in, out, std)
	}
	l := &MLP{scope: scope, owner: owner, ffn: c.FFN, layer: len(b.mlps), activation: c.Activation}
	if l.f, l.err = LookupActivation(c.Activation); l.err != nil {
		l.err = fmt.Errorf("%s: %w", scope, l.err)
	}
	b.mlps = append(b.mlps, l)
	l.up = linear("up_proj", false, c.Dim, c.FFN, c.InitStd)
	inputs := l.up.Inputs()
	if l.f.Gated {
		l.gate = linear("gate_proj", false, c.Dim, c.FFN, c.InitStd)
		inputs = append(inputs, l.gate.Inputs()...)
		l.dGate = b.gradSlot(l.gate)
		b.cacheWeights(l.gate)
		l.g = b.savedSlot(scope + ".gate")
	}
	l.u = b.savedSlot(scope + ".up")
	l.down = linear("down_proj", true, c.FFN, c.Dim, c.OutStd)
	l.input = b.Slot(scope+".input", inputs...)
	l.hidden = b.Slot(scope+".hidden", l.down.Inputs()...)
	l.dUp = b.gradSlot(l.up)
	b.cacheWeights(l.up)
	if c.Activation == SmoothSwiGLU && b.Recipe.QuantizesHidden(l.down.Layer) {
		l.smooth = b.Recipe.Smooth
	}
	if l.smooth.On() && !l.smooth.Form.PerToken() {
		l.channels = b.smoothChannels(l)
		b.wholeOf(l.down.weight)
	} else {
		b.cacheWeights(l.down)
	}
	return l
}

func (l *MLP) isSwiGLU() bool { return l.activation == SwiGLU || l.activation == SmoothSwiGLU }

// Input returns the slot that the layer reads.
func (l *MLP) Input() *Slot { return l.input }

// OutputGrad declares the slot of the gradient that Backward reads, with a plain copy for
// the residual branch. Call it once. With per-token smoothing, down's GEMMs read r ⊙ dY
// instead, which has its own slot.
func (l *MLP) OutputGrad(b *Base) *Slot {
	if l.smooth.Form.PerToken() {
		l.tokens = b.gradSlot(l.down)
		return b.Slot(l.scope+".output.grad", b.Plain())
	}
	return b.Slot(l.down.Scope+".grad", append(l.down.Grads(), b.Plain())...)
}

type mlpSaved struct {
	x, hidden *Value
	up, gate  *backend.Tensor // read by the forward,
	u, g      *Value          // and saved for the backward
	w3        *Value          // W3′ of per-channel smoothing, or nil
	c, invC   *backend.Tensor // smoothing scales per channel and 1/c, or nil
	r         *backend.Tensor // smoothing scales per token, or nil
}

// Forward appends residual + mlp(x); residual may be nil.
func (l *MLP) Forward(p *Pass, x *Value, residual *backend.Tensor) (*backend.Tensor, *mlpSaved) {
	q := p.At(l.scope)
	s := &mlpSaved{x: x}
	s.u, s.up = q.save(l.u, l.up.Forward(q, x, nil))
	if l.gate != nil {
		s.g, s.gate = q.save(l.g, l.gate.Forward(q, x, nil))
	}
	l.channelHealth(q, s)
	if l.channels != nil {
		l.forwardPerChannel(q, s)
		return l.down.forward(q, s.hidden, s.w3.As(l.down.fprop.b), nil, residual), s
	}
	s.hidden = q.Store(l.hidden, p.Tokens(), l.ffn, func(out []backend.Cast) backend.Op {
		if l.smooth.Form.PerToken() {
			return l.perToken(q, s, out)
		}
		return l.f.Forward(s.up, s.gate, out)
	})
	return l.down.forward(q, s.hidden, l.down.cachedAs(l.down.fprop.b), s.r, residual), s
}

// Backward appends the gradients of all weights and returns dx, the gradient of
// the norm's output.
func (l *MLP) Backward(p *Pass, s *mlpSaved, dy *Value) *backend.Tensor {
	q := p.At(l.scope)
	var w3 *backend.Tensor
	if s.w3 != nil {
		w3 = s.w3.As(l.down.dgrad.b)
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
	up := q.read(s.u, ".backward")
	if l.gate == nil {
		dUp := q.Store(l.dUp, p.Tokens(), l.ffn, func(out []backend.Cast) backend.Op {
			return l.f.Backward(dh, up, nil, out, nil)
		})
		l.up.Wgrad(q, s.x, dUp, nil)
		l.up.Dgrad(q, dUp, dx, false)
		return dx
	}
	dUp, dGate := q.Open(l.dUp, p.Tokens(), l.ffn), q.Open(l.dGate, p.Tokens(), l.ffn)
	op := l.f.Backward(dh, up, q.read(s.g, ".backward"), dUp.Casts(), dGate.Casts())
	if l.smooth.On() {
		grad := op.(*backend.SwiGLUGrad)
		grad.InvC, grad.TokenScale = s.invC, s.r
	}
	q.Add(op)
	q.Close(dUp, dGate)
	l.up.Wgrad(q, s.x, dUp, nil)
	l.up.Dgrad(q, dUp, dx, false)
	l.gate.Wgrad(q, s.x, dGate, nil)
	l.gate.Dgrad(q, dGate, dx, true)
	return dx
}
