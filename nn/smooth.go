package nn

import (
	"fmt"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// Smooth-SwiGLU divides the hidden activation a = u ⊙ silu(g) by factors before
// the cast to FP8. By channel, h = a ⊙ (1/c) and column i of w3 is multiplied by
// c_i; by token, h = a/r and the rows of the product are multiplied by r. The
// function is the same for any factors, so they are constants in the backward;
// what changes is that an outlier no longer takes the whole range of the format
// away from the others.
//
// Factors and scales come from the current micro-batch unless the recipe says
// otherwise: with any of them delayed by one step the method fails on the very
// spike that it exists for. A frozen pass may not look at other tokens: factors
// by token are a function of the token anyway, those by channel and the scales
// that follow from them come from running maxima.

// channels is the state of factors by channel in one layer.
type channels struct {
	weightMax *backend.Tensor // Stash F32 [ffn]: column maxima of w3
	weight    *record         // of W3′, which is cast in every micro-batch; nil: its scale is current
	window    int             // updates that delayed factors look back; 0: they are current
	from      int             // first channel in the packed tensors

	// max is this step's maxima of |a|, history those of the last updates; up is
	// likewise of |u|, nil but for the linear form. Slices of the packed tensors.
	max, history     *backend.Tensor // Stash F32 [ffn], State F32 [window, ffn]
	upMax, upHistory *backend.Tensor
}

// smoothChannels declares what a layer needs. The packed tensors follow in
// packChannels, when all layers are known.
func (m *Model) smoothChannels(l *MLP) *channels {
	ch := &channels{from: m.channels}
	ch.weightMax = m.Vars.Tensor(backend.Stash, l.down.weight.Name+".column_max", fp8.F32, l.ffn)
	if w := l.down.fprop.b; w.Scaling == recipe.Delayed {
		ch.weight = m.Scales.record(l.down.scope+".weight."+w.DType.String(), w.Cast, false)
	}
	if l.smooth.Factors == recipe.Delayed {
		ch.window = m.Recipe.History
	}
	m.channels += l.ffn
	if l.smooth.Form == recipe.Linear {
		m.channels += l.ffn
	}
	return ch
}

// packChannels declares the channel maxima of all layers side by side.
func (m *Model) packChannels() {
	if m.channels == 0 {
		return
	}
	window := runningWindow
	if m.Recipe.Smooth.Factors == recipe.Delayed {
		window = max(window, m.Recipe.History)
	}
	m.ChannelMax = m.Vars.Tensor(backend.Stash, "swiglu.channel_max", fp8.F32, m.channels)
	m.ChannelHistory = m.Vars.Tensor(backend.State, "swiglu.channel_max_history", fp8.F32, window, m.channels)
	for _, l := range m.layers {
		for i, c := range l.mlp.channelColumns() {
			stepMax := m.ChannelMax.Slice(l.mlp.scope+channelNames[i], c.from, c.n)
			history := m.ChannelHistory.Columns(c.name, c.from, c.n)
			if i == 0 {
				l.mlp.channels.max, l.mlp.channels.history = stepMax, history
			} else {
				l.mlp.channels.upMax, l.mlp.channels.upHistory = stepMax, history
			}
		}
	}
}

var channelNames = [...]string{".hidden.channel_max", ".hidden.up_max"}

// channelColumns names the layer's part of ChannelHistory.
func (l *MLP) channelColumns() []column {
	if l.channels == nil {
		return nil
	}
	list := []column{{l.scope + channelNames[0] + "_history", l.channels.from, l.ffn}}
	if l.smooth.Form == recipe.Linear {
		list = append(list, column{l.scope + channelNames[1] + "_history", l.channels.from + l.ffn, l.ffn})
	}
	return list
}

// checkSmooth refuses a w3 of which smoothing could not take one copy of h, and
// by channel one of W3′, for all products.
func (l *MLP) checkSmooth() error {
	if !l.smooth.On() {
		return nil
	}
	d := l.down
	type reader struct {
		product, operand string
		cast, as         stored
	}
	readers := []reader{{"wgrad", "input", d.wgrad.b, d.fprop.a}}
	if l.channels != nil {
		readers = append(readers, reader{"dgrad", "weight", d.dgrad.b, d.fprop.b})
	}
	for _, r := range readers {
		switch {
		case r.as.byBlock():
			return fmt.Errorf("%s: %s in %s: smooth-swiglu needs one scale for the tensor (use granularity tensor there, or activation swiglu)", d.scope, r.operand, r.as)
		case r.cast != r.as:
			return fmt.Errorf("%s: %s reads %s where fprop reads %s: smooth-swiglu needs one cast for both (give fprop the same row, or use activation swiglu)", d.scope, r.product, r.cast, r.as)
		}
	}
	return nil
}

// scalePair is a scale and its inverse.
type scalePair struct{ scale, inv *backend.Tensor }

// channelFactors appends the factors by channel and returns the scales of h and
// of W3′.
func (l *MLP) channelFactors(p *Pass, s *mlpSaved) (h, w scalePair) {
	ch := l.channels
	s.c, s.invC = p.Temp("c", fp8.F32, l.ffn), p.Temp("inv_c", fp8.F32, l.ffn)
	op := &backend.SmoothScale{
		WeightMax: ch.weightMax, C: s.c, InvC: s.invC,
		Balanced: l.smooth.Form == recipe.Balanced, Exact: l.smooth.Exact, Margin: l.smooth.Margin,
	}
	l.chooseMaxima(p, s, op)
	hCast, wCast := l.down.fprop.a, l.down.fprop.b
	h, follows := p.smoothedScale(hCast, l.hidden.recs[0], "hidden")
	if follows {
		op.HScale, op.HScaleInv, op.HLimit, op.HPow2 = h.scale, h.inv, hCast.Limit(), hCast.pow2()
	}
	w, follows = p.smoothedScale(wCast, ch.weight, "down_proj.weight")
	if follows {
		op.WScale, op.WScaleInv, op.WLimit, op.WPow2 = w.scale, w.inv, wCast.Limit(), wCast.pow2()
	}
	p.Add(op)
	return h, w
}

// forwardByChannel appends the hidden activation and w3 in the form by channel.
func (l *MLP) forwardByChannel(p *Pass, s *mlpSaved) {
	hScale, wScale := l.channelFactors(p, s)
	hCast, wCast := l.down.fprop.a, l.down.fprop.b
	h := p.root.Temp(l.hidden.recs[0].name, hCast.DType, p.Tokens(), l.ffn)
	w := p.Temp("down_proj.weight."+wCast.DType.String(), wCast.DType, l.down.weight.Master.Shape...)
	h.Scale, w.Scale = hScale.inv, wScale.inv
	hOut := []backend.Cast{p.rounded(hCast, backend.Cast{Out: h, Scale: hScale.scale})}
	wOut := []backend.Cast{{Out: w, Scale: wScale.scale}}
	var hWide, wWide *backend.Tensor
	if p.Health != nil {
		hWide, wWide = p.temp("hidden.wide", p.Tokens(), l.ffn), p.temp("down_proj.weight.wide", w.Rows(), w.Cols())
		hOut, wOut = append(hOut, backend.Cast{Out: hWide}), append(wOut, backend.Cast{Out: wWide})
	}
	p.Add(&backend.SwiGLU{Up: s.up, Gate: s.gate, InvC: s.invC, Out: hOut})
	p.named(l.down.scope).Add(&backend.Quantize{X: l.down.weight.Master, ColScale: s.c, Out: wOut})
	p.castHealth(hWide, h, l.hidden.recs[0])
	p.castHealth(wWide, w, l.channels.weight)
	s.hidden = &operand{slot: l.hidden, copies: []*backend.Tensor{h}}
	s.w3 = w
}

// smoothedScale is the scale of a smoothed operand: of its record if it is
// delayed. Else it follows from the channel maxima, of the micro-batch
// or running ones.
func (p *Pass) smoothedScale(c stored, r *record, name string) (pair scalePair, follows bool) {
	if c.Scaling == recipe.Delayed && p.Mode != Calibrate {
		return scalePair{r.scale, r.scaleInv}, false
	}
	return scalePair{p.Temp(name+".scale", fp8.F32, 1), p.Temp(name+".scale_inv", fp8.F32, 1)}, true
}

// chooseMaxima sets what op reads, and in training what it records.
func (l *MLP) chooseMaxima(p *Pass, s *mlpSaved, op *backend.SmoothScale) {
	ch, linear := l.channels, l.smooth.Form == recipe.Linear
	factors := func(window int) *backend.Tensor {
		if linear {
			return ch.upHistory.RowRange(0, window)
		}
		return ch.history.RowRange(0, window)
	}
	if p.Mode == Frozen {
		op.ChannelMax, op.Factor = ch.history.RowRange(0, runningWindow), factors(runningWindow)
	} else {
		measure := &backend.SwiGLUAmax{Up: s.up, Gate: s.gate, Out: p.Temp("channel_max", fp8.F32, l.ffn), Seen: ch.max}
		op.ChannelMax, op.Factor = measure.Out, measure.Out
		if linear {
			measure.UpOut, measure.UpSeen = p.Temp("up_max", fp8.F32, l.ffn), ch.upMax
			op.Factor = measure.UpOut
		}
		p.Add(measure)
		op.HAmax = l.hidden.recs[0].amax
		if ch.weight != nil {
			op.WAmax = ch.weight.amax
		}
	}
	if ch.window > 0 && p.Mode != Calibrate {
		op.Factor = factors(ch.window)
	}
}

// forwardByToken appends the hidden activation, each row divided by its factor.
func (l *MLP) forwardByToken(p *Pass, s *mlpSaved, out []backend.Cast) {
	s.r = p.Temp("hidden.row_factor", fp8.F32, p.Tokens())
	p.Add(&backend.SwiGLU{
		Up: s.up, Gate: s.gate, RowFactor: s.r, Out: out,
		FactorOfUp: l.smooth.Form == recipe.TokenLinear, Exact: l.smooth.Exact,
	})
}

// scaledGrad appends r ⊙ dY, the gradient of the product before its rows were
// multiplied.
func (l *MLP) scaledGrad(p *Pass, s *mlpSaved, dy *operand) *operand {
	x := p.plain(dy)
	e := p.emit(l.tokens, x.Rows(), x.Cols())
	p.Add(&backend.Quantize{X: x, RowScale: s.r, Out: e.casts})
	return e.done(p)
}

// ChannelFactors appends, to a frozen pass, the factors c of Smooth-SwiGLU by
// channel and the factor that dequantises h = a/c: F32 [ffn] and [1] for each
// layer, in order; nil where a layer has none.
func (m *Model) ChannelFactors(p *Pass) (c, hiddenScaleInv []*backend.Tensor) {
	for _, l := range m.layers {
		if l.mlp.channels == nil {
			c, hiddenScaleInv = append(c, nil), append(hiddenScaleInv, nil)
			continue
		}
		var s mlpSaved
		h, _ := l.mlp.channelFactors(p.at(l.mlp.scope), &s)
		c, hiddenScaleInv = append(c, s.c), append(hiddenScaleInv, h.inv)
	}
	return c, hiddenScaleInv
}

// prepare appends what a change of w3 asks for: its column maxima.
func (l *MLP) prepare(p *Pass) {
	if l.channels != nil {
		p.named(l.down.scope).Add(&backend.Amax{X: l.down.weight.Master, Out: l.channels.weightMax})
	}
}
