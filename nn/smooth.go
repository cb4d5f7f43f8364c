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
	weight    *slot           // W3′, which is cast in every micro-batch; no record: its scale is current
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
	ch.weight = &slot{name: l.down.scope + ".weight"}
	for _, c := range l.down.weights() {
		if ch.weight.index(c) >= 0 {
			continue
		}
		name := c.DType.String()
		var r *record
		if c.Scaling == recipe.Delayed {
			r = m.Scales.record(ch.weight.name, name, c.Cast, false)
		}
		m.Scales.add(ch.weight, c, name, r)
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

// checkSmooth refuses a w3 whose products want h, or by channel W3′, in copies
// that differ in more than the FP8 format.
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
		same := r.as
		if r.as.DType.IsFP8() && r.cast.DType.IsFP8() {
			same.DType = r.cast.DType
		}
		switch {
		case r.as.byBlock():
			return fmt.Errorf("%s: %s in %s: smooth-swiglu needs one scale for the tensor (use granularity tensor there, or activation swiglu)", d.scope, r.operand, r.as)
		case r.cast != same:
			return fmt.Errorf("%s: %s reads %s where fprop reads %s: smooth-swiglu needs one cast for both, but for the FP8 format (give fprop the same row, or use activation swiglu)", d.scope, r.product, r.cast, r.as)
		}
	}
	return nil
}

// scalePair is a scale and its inverse.
type scalePair struct{ scale, inv *backend.Tensor }

// channelFactors appends the factors by channel and returns the scales of the
// copies of h and of W3′.
func (l *MLP) channelFactors(p *Pass, s *mlpSaved) (h, w []scalePair) {
	ch := l.channels
	s.c, s.invC = p.Temp("c", fp8.F32, l.ffn), p.Temp("inv_c", fp8.F32, l.ffn)
	factors := backend.SmoothScale{
		WeightMax: ch.weightMax, C: s.c, InvC: s.invC,
		Balanced: l.smooth.Form == recipe.Balanced, Exact: l.smooth.Exact, Margin: l.smooth.Margin,
	}
	l.chooseMaxima(p, s, &factors)
	// One op chooses the scale of one copy of each. For further formats it is
	// run again: its factors are the same.
	for i := range max(p.smoothCopies(l.hidden), p.smoothCopies(ch.weight)) {
		op, format := factors, ""
		if i > 0 {
			format = fmt.Sprintf(".%d", i)
			op.C, op.InvC = p.Temp("c"+format, fp8.F32, l.ffn), p.Temp("inv_c"+format, fp8.F32, l.ffn)
		}
		if i < p.smoothCopies(l.hidden) {
			c, r := l.hidden.casts[i], l.hidden.recs[i]
			pair, follows := p.smoothedScale(c, r, "hidden"+format)
			if follows {
				op.HScale, op.HScaleInv, op.HLimit, op.HPow2 = pair.scale, pair.inv, c.Limit(), c.pow2()
			}
			if p.Mode != Frozen {
				op.HAmax = r.amax
			}
			h = append(h, pair)
		}
		if i < p.smoothCopies(ch.weight) {
			c, r := ch.weight.casts[i], ch.weight.recs[i]
			pair, follows := p.smoothedScale(c, r, "down_proj.weight"+format)
			if follows {
				op.WScale, op.WScaleInv, op.WLimit, op.WPow2 = pair.scale, pair.inv, c.Limit(), c.pow2()
			}
			if p.Mode != Frozen && r != nil {
				op.WAmax = r.amax
			}
			w = append(w, pair)
		}
		p.Add(&op)
	}
	return h, w
}

// smoothCopies is how many copies of a smoothed operand the pass makes: the
// first is fprop's, another one the backward's.
func (p *Pass) smoothCopies(s *slot) int {
	if p.Mode == Frozen {
		return 1
	}
	return len(s.casts)
}

// forwardByChannel appends the hidden activation and w3 in the form by channel.
func (l *MLP) forwardByChannel(p *Pass, s *mlpSaved) {
	hScales, wScales := l.channelFactors(p, s)
	s.hidden, s.w3 = &operand{slot: l.hidden}, &operand{slot: l.channels.weight}
	var hOut, wOut []backend.Cast
	for i, scale := range hScales {
		c := l.hidden.casts[i]
		h := p.root.Temp(l.hidden.recs[i].name, c.DType, p.Tokens(), l.ffn)
		h.Scale = scale.inv
		hOut = append(hOut, p.rounded(c, backend.Cast{Out: h, Scale: scale.scale}))
		s.hidden.copies = append(s.hidden.copies, h)
	}
	w3 := l.down.weight.whole
	for i, scale := range wScales {
		w := p.Temp("down_proj.weight."+l.channels.weight.names[i], l.channels.weight.casts[i].DType, w3.Shape...)
		w.Scale = scale.inv
		wOut = append(wOut, backend.Cast{Out: w, Scale: scale.scale})
		s.w3.copies = append(s.w3.copies, w)
	}
	var hWide, wWide *backend.Tensor
	if p.Health != nil {
		hWide = p.temp("hidden.wide", p.Tokens(), l.ffn)
		hOut = append(hOut, backend.Cast{Out: hWide})
		if l.channels.weight.hasFP8() {
			wWide = p.temp("down_proj.weight.wide", w3.Rows(), w3.Cols())
			wOut = append(wOut, backend.Cast{Out: wWide})
		}
	}
	p.Add(&backend.SwiGLU{Up: s.up, Gate: s.gate, InvC: s.invC, Out: hOut})
	p.named(l.down.scope).Add(&backend.Quantize{X: w3, ColScale: s.c, Out: wOut})
	for i, h := range s.hidden.copies {
		p.castHealth(l.hidden, i, hWide, h)
	}
	for i, w := range s.w3.copies {
		p.castHealth(l.channels.weight, i, wWide, w)
	}
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

// chooseMaxima sets what op reads, and measures it in training.
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
		c, hiddenScaleInv = append(c, s.c), append(hiddenScaleInv, h[0].inv)
	}
	return c, hiddenScaleInv
}

// prepare appends what a change of w3 asks for: its column maxima.
func (l *MLP) prepare(p *Pass) {
	if l.channels != nil {
		p.named(l.down.scope).Add(&backend.Amax{X: l.down.weight.whole, Out: l.channels.weightMax})
	}
}
