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
	linear := func(module string, split Split, in, out int, std float64) *Linear {
		return b.linearNamed(path(module), recipe.Layer{Scope: scope + "." + module, Hidden: split == SplitColumns}, split, in, out, std)
	}
	l := &MLP{scope: scope, owner: owner, ffn: c.FFN / b.tensor(), layer: len(b.mlps), activation: c.Activation}
	if l.f, l.err = LookupActivation(c.Activation); l.err != nil {
		l.err = fmt.Errorf("%s: %w", scope, l.err)
	}
	b.mlps = append(b.mlps, l)
	l.up = linear("up_proj", SplitRows, c.Dim, c.FFN, c.InitStd)
	inputs := l.up.Inputs()
	if l.f.Gated {
		l.gate = linear("gate_proj", SplitRows, c.Dim, c.FFN, c.InitStd)
		inputs = append(inputs, l.gate.Inputs()...)
		l.dGate = b.gradSlot(l.gate)
		b.cacheWeights(l.gate)
		l.g = b.savedSlot(scope + ".gate")
	}
	l.u = b.savedSlot(scope + ".up")
	l.down = linear("down_proj", SplitColumns, c.FFN, c.Dim, c.OutStd)
	l.input = b.tokenSlot(scope+".input", inputs)
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
		return b.tokenSlot(l.scope+".output.grad", []Copy{b.Plain()})
	}
	return b.tokenSlot(l.down.Scope+".grad", l.down.Grads(), b.Plain())
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
	s := l.project(p, x)
	l.activate(p, s)
	return l.projectDown(p, s, residual), s
}

// Backward appends the gradients of all weights and returns dx, the gradient of
// the norm's output.
func (l *MLP) Backward(p *Pass, s *mlpSaved, dy *Value) *backend.Tensor {
	g := l.gradHidden(p, s, l.scaledGrad(p, s, dy))
	l.gradActivation(p, s, g)
	l.gradUp(p, s, g)
	l.gradGate(p, s, g)
	return p.At(l.scope).scatterTokens(g.x)
}

// The parts of Forward and Backward follow. A mixture of experts appends one part of all experts
// before the next, so that a backend finds their GEMMs side by side and can group them.

// mlpGrads holds the gradients that the parts of Backward pass on.
type mlpGrads struct {
	hidden   *backend.Tensor // of down's input
	up, gate *Value          // of the results of up and gate
	x        *backend.Tensor // of the input
}

// project appends the GEMMs of up and gate.
func (l *MLP) project(p *Pass, x *Value) *mlpSaved {
	q, s := p.At(l.scope), &mlpSaved{x: x}
	s.up = l.up.Forward(q, x, nil)
	if l.gate != nil {
		s.gate = l.gate.Forward(q, x, nil)
	}
	return s
}

// activate appends the activation, with its smoothing.
func (l *MLP) activate(p *Pass, s *mlpSaved) {
	q := p.At(l.scope)
	s.u, s.up = q.save(l.u, s.up)
	if l.gate != nil {
		s.g, s.gate = q.save(l.g, s.gate)
	}
	l.channelHealth(q, s)
	if l.channels != nil {
		l.forwardPerChannel(q, s)
		return
	}
	s.hidden = q.Store(l.hidden, p.Tokens(), l.ffn, func(out []backend.Cast) backend.Op {
		if l.smooth.Form.PerToken() {
			return l.perToken(q, s, out)
		}
		return l.f.Forward(s.up, s.gate, out)
	})
}

// projectDown appends the GEMM of down.
func (l *MLP) projectDown(p *Pass, s *mlpSaved, residual *backend.Tensor) *backend.Tensor {
	w3 := l.down.fprop.b
	if s.w3 != nil {
		return l.down.forward(p.At(l.scope), s.hidden, s.w3.As(w3), nil, residual)
	}
	return l.down.forward(p.At(l.scope), s.hidden, l.down.cachedAs(w3), s.r, residual)
}

// gradHidden appends the GEMMs of down's gradients; dy is that of scaledGrad.
func (l *MLP) gradHidden(p *Pass, s *mlpSaved, dy *Value) *mlpGrads {
	q := p.At(l.scope)
	var w3 *backend.Tensor
	if s.w3 != nil {
		w3 = s.w3.As(l.down.dgrad.b)
	} else {
		w3 = l.down.cachedAs(l.down.dgrad.b)
	}
	// wgrad computes the gradient of W3′ = W3·c: its columns times c are that of W3.
	l.down.Wgrad(q, s.hidden, dy, s.c)
	g := &mlpGrads{hidden: q.temp("hidden.grad", p.Tokens(), l.ffn)}
	l.down.dgradOf(q, dy, w3, g.hidden, false)
	return g
}

// gradActivation appends the gradient of the activation.
func (l *MLP) gradActivation(p *Pass, s *mlpSaved, g *mlpGrads) {
	q := p.At(l.scope)
	up := q.read(s.u, ".backward")
	if l.gate == nil {
		g.up = q.Store(l.dUp, p.Tokens(), l.ffn, func(out []backend.Cast) backend.Op {
			return l.f.Backward(g.hidden, up, nil, out, nil)
		})
		return
	}
	g.up, g.gate = q.Open(l.dUp, p.Tokens(), l.ffn), q.Open(l.dGate, p.Tokens(), l.ffn)
	op := l.f.Backward(g.hidden, up, q.read(s.g, ".backward"), g.up.Casts(), g.gate.Casts())
	if l.smooth.On() {
		grad := op.(*backend.SwiGLUGrad)
		grad.InvC, grad.TokenScale = s.invC, s.r
	}
	q.Add(op)
	q.Close(g.up, g.gate)
}

// gradUp appends the GEMMs of up's gradients.
func (l *MLP) gradUp(p *Pass, s *mlpSaved, g *mlpGrads) {
	q := p.At(l.scope)
	g.x = q.Temp("input.grad", fp8.F32, p.Tokens(), l.up.weight.Master.Cols())
	l.up.Wgrad(q, s.x, g.up, nil)
	l.up.Dgrad(q, g.up, g.x, false)
}

// gradGate appends the GEMMs of gate's gradients. It adds to g.x.
func (l *MLP) gradGate(p *Pass, s *mlpSaved, g *mlpGrads) {
	if l.gate == nil {
		return
	}
	q := p.At(l.scope)
	l.gate.Wgrad(q, s.x, g.gate, nil)
	l.gate.Dgrad(q, g.gate, g.x, true)
}
