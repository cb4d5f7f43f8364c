package nn

import (
	"fmt"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// MLP is w3·(w1·x ⊙ silu(w2·x)), with w1 = up_proj, w2 = gate_proj and
// w3 = down_proj, or w3·f(w1·x) for the ungated activations.
//
// Smooth-SwiGLU divides channel i of the hidden activation by c_i before the
// cast to FP8 and multiplies column i of w3 by it. The function is the same for
// any c, so c is a constant in the backward; what changes is that an outlier
// channel no longer takes the whole range of the format away from the others.
// Both factors and both scales come from the current micro-batch: with a scale
// delayed by one step the method fails on the very spike it exists for.
type MLP struct {
	scope          string
	up, gate, down *Linear // gate is nil for an ungated activation
	kind           backend.ActivationKind
	ffn            int

	input      *slot // what up and gate read
	hidden     *slot // what down reads
	dUp, dGate *slot

	smooth *smooth // nil: plain
}

// smooth is the state of Smooth-SwiGLU in one layer.
type smooth struct {
	weightMax  *backend.Tensor // Stash F32 [ffn]: column maxima of w3
	channelMax *backend.Tensor // Stash F32 [ffn]: this step's maxima, a slice of the packed tensor
	history    *backend.Tensor // State F32 [window, ffn]
	from       int             // first channel in the packed tensors
}

func (m *Model) mlp(scope string) *MLP {
	c := m.Config
	l := &MLP{scope: scope, ffn: c.FFN}
	l.up = m.linear(scope+".up_proj", c.Dim, c.FFN, c.InitStd, true)
	inputs := l.up.inputs()
	if c.Activation.gated() {
		l.gate = m.linear(scope+".gate_proj", c.Dim, c.FFN, c.InitStd, true)
		inputs = concat(inputs, l.gate.inputs())
		l.dGate = m.gradSlot(l.gate)
		m.cacheWeights(l.gate)
	}
	if c.Activation == ReLU {
		l.kind = backend.ReLU
	}
	l.down = m.linear(scope+".down_proj", c.FFN, c.Dim, c.residualStd(), true)
	l.input = m.Scales.slot(scope+".input", false, inputs...)
	l.hidden = m.Scales.slot(scope+".hidden", false, l.down.inputs()...)
	l.dUp = m.gradSlot(l.up)
	m.cacheWeights(l.up)
	if c.Activation == SmoothSwiGLU && l.down.smoothable() {
		l.smooth = &smooth{from: m.channels}
		l.smooth.weightMax = m.Vars.Tensor(backend.Stash, l.down.weight.Name+".column_max", fp8.F32, c.FFN)
		m.channels += c.FFN
	} else {
		m.cacheWeights(l.down)
	}
	return l
}

// smoothable: one FP8 copy of h and one of W3′ serve all three products. In a
// layer whose w3 is kept in BF16 there is nothing to smooth.
func (l *Linear) smoothable() bool {
	return l.fprop.a.DType.IsFP8() && l.fprop.a == l.wgrad.b && l.fprop.b == l.dgrad.b
}

// checkSmooth refuses a w3 that is FP8 in some products only: smoothing would
// change h for all of them.
func (l *Linear) checkSmooth() error {
	for _, c := range []struct {
		gemm string
		cast recipe.Cast
		as   recipe.Cast
	}{{"wgrad", l.wgrad.b, l.fprop.a}, {"dgrad", l.dgrad.b, l.fprop.b}} {
		if c.cast != c.as {
			return fmt.Errorf("%s: %s reads %s where fprop reads %s: smooth-swiglu needs one cast for both (give fprop the same row, or use activation swiglu)", l.scope, c.gemm, c.cast, c.as)
		}
	}
	return nil
}

type mlpSaved struct {
	x, hidden *operand
	up, gate  *backend.Tensor
	w3        *backend.Tensor // W3′ of Smooth-SwiGLU
	c, invC   *backend.Tensor
}

// Forward appends residual + mlp(x).
func (l *MLP) Forward(p *Pass, x *operand, residual *backend.Tensor) (*backend.Tensor, *mlpSaved) {
	q := p.at(l.scope)
	s := &mlpSaved{x: x, up: l.up.Forward(q, x, nil)}
	if l.gate != nil {
		s.gate = l.gate.Forward(q, x, nil)
	}
	if l.smooth != nil {
		l.smoothed(q, s)
		return l.down.forward(q, s.hidden, s.w3, residual), s
	}
	e := p.emit(l.hidden, p.Tokens(), l.ffn)
	if l.gate != nil {
		q.Add(&backend.SwiGLU{Up: s.up, Gate: s.gate, Out: e.casts})
	} else {
		q.Add(&backend.Activation{X: s.up, Out: e.casts, Kind: l.kind})
	}
	s.hidden = e.done(q)
	return l.down.Forward(q, s.hidden, residual), s
}

// smoothed appends the hidden activation and w3 in Smooth-SwiGLU's form.
func (l *MLP) smoothed(p *Pass, s *mlpSaved) {
	f32 := func(name string, n int) *backend.Tensor { return p.Temp(name, fp8.F32, n) }
	hCast, wCast := l.down.fprop.a, l.down.fprop.b
	h := p.root.Temp(l.hidden.name+"."+hCast.DType.String(), hCast.DType, p.Tokens(), l.ffn)
	w := p.Temp("down_proj.weight."+wCast.DType.String(), wCast.DType, l.down.weight.Master.Shape...)
	h.Scale, w.Scale = f32("hidden.scale_inv", 1), f32("down_proj.weight.scale_inv", 1)
	s.c, s.invC = f32("c", l.ffn), f32("inv_c", l.ffn)
	scale := &backend.SmoothScale{
		ChannelMax: l.smooth.history, WeightMax: l.smooth.weightMax,
		C: s.c, InvC: s.invC,
		HScale: f32("hidden.scale", 1), HScaleInv: h.Scale,
		WScale: f32("down_proj.weight.scale", 1), WScaleInv: w.Scale,
		Form: backend.Balanced, HLimit: hCast.Limit(), WLimit: wCast.Limit(),
	}
	if p.Mode != Frozen {
		scale.ChannelMax = f32("channel_max", l.ffn)
		scale.Seen, scale.Amax = l.smooth.channelMax, l.hidden.recs[0].amax
		p.Add(&backend.SwiGLUAmax{Up: s.up, Gate: s.gate, Out: scale.ChannelMax})
	}
	p.Add(scale)
	p.Add(&backend.SwiGLU{
		Up: s.up, Gate: s.gate, InvC: s.invC,
		Out: []backend.Cast{p.rounded(hCast, backend.Cast{Out: h, Scale: scale.HScale})},
	})
	p.named(l.down.scope).Add(&backend.Quantize{
		X: l.down.weight.Master, ColScale: s.c,
		Out: []backend.Cast{{Out: w, Scale: scale.WScale}},
	})
	s.hidden = &operand{slot: l.hidden, copies: []*backend.Tensor{h}}
	s.w3 = w
}

// Backward appends all gradients and returns that of the block's input, before
// the norm.
func (l *MLP) Backward(p *Pass, s *mlpSaved, dy *operand) *backend.Tensor {
	q := p.at(l.scope)
	w3 := s.w3
	if w3 == nil {
		w3 = l.down.cachedAs(l.down.dgrad.b)
	}
	// The columns of dW3 belong to w3, not to W3′: times c.
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
		DOut: dh, Up: s.up, Gate: s.gate, InvC: s.invC,
		DUp: eUp.casts, DGate: eGate.casts,
	})
	dUp, dGate := eUp.done(q), eGate.done(q)
	l.up.Wgrad(q, s.x, dUp, nil)
	l.up.Dgrad(q, dUp, dx, false)
	l.gate.Wgrad(q, s.x, dGate, nil)
	l.gate.Dgrad(q, dGate, dx, true)
	return dx
}

// prepare appends what a change of w3 asks for: its column maxima.
func (l *MLP) prepare(p *Pass) {
	if l.smooth != nil {
		p.named(l.down.scope).Add(&backend.Amax{X: l.down.weight.Master, Out: l.smooth.weightMax})
	}
}

func concat(lists ...[]recipe.Cast) []recipe.Cast {
	var all []recipe.Cast
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}
