package nn

import (
	"fmt"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// Smooth-SwiGLU divides the hidden activation a = u ⊙ silu(g) by smoothing
// scales before the cast to FP8. Per channel, h = a ⊙ (1/c), and column i of w3
// is multiplied by c_i. Per token, h = a/r, and the rows of h·W3ᵀ are multiplied
// by r. The result does not depend on the smoothing scales, so the backward
// treats them as constants; only the rounding errors change. Without them, one
// outlier channel sets the FP8 scale and all other channels underflow.
//
// Smoothing scales and FP8 scales come from the current micro-batch unless the
// recipe delays them. With any of them one step late the method fails on the
// first spike. A frozen pass must not look at other tokens: per-token smoothing
// scales depend only on their own token, and per-channel ones and their FP8
// scales come from the maxima of the last runningWindow updates.

// channels is the state of per-channel smoothing in one layer.
type channels struct {
	weightMax *backend.Tensor // Stash F32 [ffn]: column maxima of w3
	weight    *Slot           // W3′, cast in every micro-batch; it has records only if its scale is delayed
	window    int             // history window of delayed smoothing scales, in updates; 0: they are current
	from      int             // first channel in the packed tensors

	// max holds this step's channel maxima of |a|, history those of the last
	// updates. upMax and upHistory are the same of |u|, nil unless the form is
	// linear. All are slices of the packed tensors.
	max, history     *backend.Tensor // Stash F32 [ffn], State F32 [window, ffn]
	upMax, upHistory *backend.Tensor
}

// smoothChannels declares the state of one layer. packChannels declares the packed
// tensors once all layers are known.
func (b *Base) smoothChannels(l *MLP) *channels {
	ch := &channels{from: b.channels}
	ch.weightMax = b.Vars.Tensor(backend.Stash, l.down.weight.Name+".column_max", fp8.F32, l.ffn)
	ch.weight = &Slot{name: l.down.Scope + ".weight"}
	for _, c := range l.down.weights() {
		if ch.weight.index(c) >= 0 {
			continue
		}
		name := c.DType.String()
		var r *record
		if c.Scaling == recipe.Delayed {
			r = b.Scales.record(ch.weight.name, name, c, false)
		}
		b.Scales.add(ch.weight, c, name, r)
	}
	if l.smooth.Smoothing == recipe.Delayed {
		ch.window = b.Recipe.History
	}
	b.channels += l.ffn
	if l.smooth.Form == recipe.Linear {
		b.channels += l.ffn
	}
	return ch
}

// packChannels declares the packed channel maxima of all layers.
func (b *Base) packChannels() {
	if b.channels == 0 {
		return
	}
	window := runningWindow
	if b.Recipe.Smooth.Smoothing == recipe.Delayed {
		window = max(window, b.Recipe.History)
	}
	b.ChannelMax = b.Vars.Tensor(backend.Stash, "swiglu.channel_max", fp8.F32, b.channels)
	b.ChannelHistory = b.Vars.Tensor(backend.State, "swiglu.channel_max_history", fp8.F32, window, b.channels)
	for _, l := range b.mlps {
		for i, c := range l.channelColumns() {
			stepMax := b.ChannelMax.Slice(l.scope+channelNames[i], c.from, c.n)
			history := b.ChannelHistory.Columns(c.name, c.from, c.n)
			if i == 0 {
				l.channels.max, l.channels.history = stepMax, history
			} else {
				l.channels.upMax, l.channels.upHistory = stepMax, history
			}
		}
	}
}

var channelNames = [...]string{".hidden.channel_max", ".hidden.up_max"}

// channelColumns returns the layer's columns of ChannelHistory.
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

// check reports an unknown activation, and a w3 whose GEMMs read h, or W3′ of per-channel
// smoothing, in copies that differ in more than the FP8 format.
func (l *MLP) check() error {
	if !l.smooth.On() { // an unknown activation never smooths
		return l.err
	}
	d := l.down
	type reader struct {
		gemm, operand string
		cast, as      Copy
	}
	readers := []reader{{"wgrad", "input", d.wgrad.b, d.fprop.a}}
	if l.channels != nil {
		readers = append(readers, reader{"dgrad", "weight", d.dgrad.b, d.fprop.b})
	}
	for _, r := range readers {
		same := r.as
		if r.as.DType.IsQuantized() && r.cast.DType.IsQuantized() {
			same.DType = r.cast.DType
		}
		switch {
		case r.as.blockScaled():
			return fmt.Errorf("%s: %s in %s: smooth-swiglu needs one scale per tensor (use granularity tensor there, or activation swiglu)", d.Scope, r.operand, r.as)
		case r.cast != same:
			return fmt.Errorf("%s: %s reads %s where fprop reads %s: smooth-swiglu needs the same cast for both, except for the FP8 format (give fprop the same row, or use activation swiglu)", d.Scope, r.gemm, r.cast, r.as)
		}
	}
	return nil
}

// scalePair is a scale and its inverse.
type scalePair struct{ scale, inv *backend.Tensor }

// smoothingScales appends the computation of the smoothing scales per channel and
// returns the FP8 scales of the copies of h and of W3′.
func (l *MLP) smoothingScales(p *Pass, s *mlpSaved) (h, w []scalePair) {
	ch := l.channels
	s.c, s.invC = p.Temp("c", fp8.F32, l.ffn), p.Temp("inv_c", fp8.F32, l.ffn)
	smooth := backend.SmoothScale{
		WeightMax: ch.weightMax, C: s.c, InvC: s.invC,
		Balanced: l.smooth.Form == recipe.Balanced, Exact: l.smooth.Exact, Margin: l.smooth.Margin,
	}
	l.chooseMaxima(p, s, &smooth)
	// One op computes the scale of one copy of h and of W3′. It runs again for each
	// further format, with the same smoothing scales.
	maxima := &partMaxima{pass: p}
	for i := range max(p.smoothCopies(l.hidden), p.smoothCopies(ch.weight)) {
		op, format := smooth, ""
		if i > 0 {
			format = fmt.Sprintf(".%d", i)
			op.C, op.InvC = p.Temp("c"+format, fp8.F32, l.ffn), p.Temp("inv_c"+format, fp8.F32, l.ffn)
		}
		if i < p.smoothCopies(l.hidden) {
			c, r := l.hidden.casts[i], l.hidden.recs[i]
			pair, follows := p.smoothedScale(c, r, "hidden"+format)
			switch {
			case follows && p.tensor > 1:
				op.HAmax = maxima.scale(pair, c, r)
			case follows:
				op.HScale, op.HScaleInv, op.HLimit, op.HPow2 = pair.scale, pair.inv, c.Limit(), c.pow2()
			}
			if p.Mode != Frozen && op.HAmax == nil {
				op.HAmax = r.amax
			}
			h = append(h, pair)
		}
		if i < p.smoothCopies(ch.weight) {
			c, r := ch.weight.casts[i], ch.weight.recs[i]
			pair, follows := p.smoothedScale(c, r, "down_proj.weight"+format)
			switch {
			case follows && p.tensor > 1:
				op.WAmax = maxima.scale(pair, c, r)
			case follows:
				op.WScale, op.WScaleInv, op.WLimit, op.WPow2 = pair.scale, pair.inv, c.Limit(), c.pow2()
			}
			if p.Mode != Frozen && r != nil && op.WAmax == nil {
				op.WAmax = r.amax
			}
			w = append(w, pair)
		}
		p.Add(&op)
	}
	maxima.choose()
	return h, w
}

// partMaxima holds the amaxes of h and W3′ where ranks have some channels each: their scales follow from
// the maxima over these ranks, which one all-reduce finds for all copies.
type partMaxima struct {
	pass    *Pass
	packed  *backend.Tensor
	updates []*backend.UpdateScale
}

// scale returns the amax that SmoothScale accumulates, from which choose computes the scale of copy c.
func (m *partMaxima) scale(pair scalePair, c Copy, r *record) *backend.Tensor {
	const most = 4 // two copies of h and of W3′
	if m.packed == nil {
		m.packed = m.pass.Temp("smooth.amax", fp8.F32, most)
		m.pass.Add(&backend.Fill{Out: m.packed})
	}
	amax := m.packed.Slice(pair.scale.Name+".amax", len(m.updates), 1)
	u := &backend.UpdateScale{History: amax, Scale: pair.scale, ScaleInv: pair.inv, Limit: c.Limit(), Pow2: c.pow2()}
	if m.pass.Mode != Frozen && r != nil {
		u.Seen = r.amax
	}
	m.updates = append(m.updates, u)
	return amax
}

// choose appends the all-reduce and the scales.
func (m *partMaxima) choose() {
	if m.packed == nil {
		return
	}
	m.pass.maxOverParts(m.packed)
	for _, u := range m.updates {
		m.pass.Add(u)
	}
}

// smoothCopies returns how many copies of h or W3′ the pass makes: the first is
// fprop's, the second, if any, the backward's.
func (p *Pass) smoothCopies(s *Slot) int {
	if p.Mode == Frozen {
		return 1
	}
	return len(s.casts)
}

// forwardPerChannel appends h and W3′ of per-channel smoothing.
func (l *MLP) forwardPerChannel(p *Pass, s *mlpSaved) {
	hScales, wScales := l.smoothingScales(p, s)
	s.hidden, s.w3 = &Value{slot: l.hidden}, &Value{slot: l.channels.weight}
	var hOut, wOut []backend.Cast
	for i, scale := range hScales {
		c := l.hidden.casts[i]
		h := p.root.Temp(l.hidden.recs[i].name, c.DType, p.Tokens(), l.ffn)
		h.Scale = scale.inv
		hOut = append(hOut, p.rounded(c, backend.Cast{Out: h, Scale: scale.scale}))
		s.hidden.copies = append(s.hidden.copies, h)
	}
	w3 := l.down.weight.whole // not codes of other ranks' rows: their smoothing scales differ
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
		if l.channels.weight.hasQuantized() {
			wWide = p.temp("down_proj.weight.wide", w3.Rows(), w3.Cols())
			wOut = append(wOut, backend.Cast{Out: wWide})
		}
	}
	p.Add(&backend.SwiGLU{Up: s.up, Gate: s.gate, InvC: s.invC, Out: hOut})
	p.named(l.down.Scope).Add(&backend.Quantize{X: w3, ColScale: s.c, Out: wOut})
	for i, h := range s.hidden.copies {
		p.castHealth(l.hidden, i, hWide, h)
	}
	for i, w := range s.w3.copies {
		p.castHealth(l.channels.weight, i, wWide, w)
	}
}

// smoothedScale returns the FP8 scale of a copy of h or W3′: that of its record if
// it is delayed. Otherwise follows is true, and SmoothScale computes it from the
// channel maxima of the micro-batch or, in a frozen pass, of the last updates.
func (p *Pass) smoothedScale(c Copy, r *record, name string) (pair scalePair, follows bool) {
	if c.Scaling == recipe.Delayed && p.Mode != Calibrate {
		return scalePair{r.scale, r.scaleInv}, false
	}
	return scalePair{p.Temp(name+".scale", fp8.F32, 1), p.Temp(name+".scale_inv", fp8.F32, 1)}, true
}

// chooseMaxima sets the maxima that op reads. In training it appends their measurement.
func (l *MLP) chooseMaxima(p *Pass, s *mlpSaved, op *backend.SmoothScale) {
	ch, linear := l.channels, l.smooth.Form == recipe.Linear
	pastMax := func(window int) *backend.Tensor {
		if linear {
			return ch.upHistory.RowRange(0, window)
		}
		return ch.history.RowRange(0, window)
	}
	if p.Mode == Frozen {
		op.ChannelMax, op.SmoothMax = ch.history.RowRange(0, runningWindow), pastMax(runningWindow)
	} else {
		measure := &backend.SwiGLUAmax{Up: s.up, Gate: s.gate, Out: p.Temp("channel_max", fp8.F32, l.ffn), Seen: ch.max}
		op.ChannelMax, op.SmoothMax = measure.Out, measure.Out
		if linear {
			measure.UpOut, measure.UpSeen = p.Temp("up_max", fp8.F32, l.ffn), ch.upMax
			op.SmoothMax = measure.UpOut
		}
		p.Add(measure)
	}
	if ch.window > 0 && p.Mode != Calibrate {
		op.SmoothMax = pastMax(ch.window)
	}
}

// perToken returns the op that computes h of per-token smoothing: each row divided by its
// smoothing scale.
func (l *MLP) perToken(p *Pass, s *mlpSaved, out []backend.Cast) backend.Op {
	s.r = p.Temp("hidden.row_factor", fp8.F32, p.Tokens())
	return &backend.SwiGLU{
		Up: s.up, Gate: s.gate, TokenScale: s.r, Out: out,
		ScaleOfUp: l.smooth.Form == recipe.TokenLinear, Exact: l.smooth.Exact,
	}
}

// scaledGrad appends r ⊙ dY, the gradient of h·W3ᵀ, whose rows the forward
// multiplies by r. Without smoothing per token it returns dy.
func (l *MLP) scaledGrad(p *Pass, s *mlpSaved, dy *Value) *Value {
	if s.r == nil {
		return dy
	}
	x := dy.As(plain(p.compute))
	return p.At(l.scope).Store(l.tokens, x.Rows(), x.Cols(), func(out []backend.Cast) backend.Op {
		return &backend.Quantize{X: x, RowScale: s.r, Out: out}
	})
}

// SmoothingScales appends, to a frozen pass, the smoothing scales c per
// channel and the scale_inv of h = a/c. It returns tensors F32 [ffn] and [1] for
// each layer, in order; nil for a layer without per-channel smoothing.
func (b *Base) SmoothingScales(p *Pass) (c, hiddenScaleInv []*backend.Tensor) {
	for _, l := range b.mlps {
		if l.channels == nil {
			c, hiddenScaleInv = append(c, nil), append(hiddenScaleInv, nil)
			continue
		}
		var s mlpSaved
		h, _ := l.smoothingScales(p.At(l.scope), &s)
		c, hiddenScaleInv = append(c, s.c), append(hiddenScaleInv, h[0].inv)
	}
	return c, hiddenScaleInv
}

// prepare appends the column maxima of w3, which change with its weights.
func (l *MLP) prepare(p *Pass) {
	if l.channels == nil {
		return
	}
	w, q := l.down.weight, p.named(l.down.Scope)
	if w.storesWhole() {
		q.Add(&backend.Amax{X: w.whole, Out: l.channels.weightMax})
		return
	}
	q.Add(&backend.Amax{X: w.Master, Out: l.channels.weightMax})
	p.comm().Add(&backend.AllReduce{X: l.channels.weightMax, Reduce: backend.ReduceMax, Group: p.dataGroup()})
}
