package nn

import (
	"fmt"
	"iter"
	"slices"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// Model is a Llama-style decoder: its parameters, its scale state and the
// layers that append ops. It stores no values and is bound to no device.
type Model struct {
	Config Config
	Recipe recipe.Recipe
	Vars   *backend.Vars
	Params []*Param // in the order of the forward pass
	Scales Scales

	// ChannelMax and ChannelHistory are the channel maxima of per-channel
	// Smooth-SwiGLU, of this step [n] and of the last updates [window, n], with the
	// layers concatenated; nil otherwise.
	ChannelMax, ChannelHistory *backend.Tensor

	embed    *Param
	table    *backend.Tensor // the embedding table that micro-batches read: see embedTable
	layers   []*layer
	norm     *RMSNorm
	head     *Linear
	headIn   *slot
	linears  []*Linear
	channels int
}

// layer is one decoder layer.
type layer struct {
	attnNorm, mlpNorm *RMSNorm
	attn              *Attention
	mlp               *MLP
	// gradients of the residual stream: mid after attention, out after the MLP
	mid, out *slot
}

// New declares a model's tensors in vars.
func New(c Config, r recipe.Recipe, vars *backend.Vars) (*Model, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if err := r.Validate(); err != nil {
		return nil, err
	}
	m := &Model{Config: c, Recipe: r, Vars: vars, Scales: Scales{delayedWindow: r.History}}
	m.embed = m.param("model.embed_tokens.weight", false, c.InitStd, c.PaddedVocab(), c.Dim)
	m.embed.Rows = c.Vocab
	for i := range c.Layers {
		l := m.layer(fmt.Sprintf("layers.%d", i))
		if err := l.mlp.checkSmooth(); err != nil {
			return nil, err
		}
		m.layers = append(m.layers, l)
	}
	m.norm = m.rmsNorm("norm")
	m.head = m.resolve("lm_head")
	m.head.weight = m.embed
	if !c.Tied {
		m.head.weight = m.param("lm_head.weight", false, c.InitStd, c.PaddedVocab(), c.Dim)
		m.head.weight.Rows = c.Vocab
	}
	m.linears = append(m.linears, m.head)
	for _, l := range m.linears {
		if err := l.check(); err != nil {
			return nil, fmt.Errorf("recipe %s: %w", r.Name, err)
		}
	}
	for _, cast := range slices.Concat(m.head.inputs(), m.head.grads(), m.head.weights()) {
		if cast.DType != r.Compute {
			return nil, fmt.Errorf("recipe %s: lm_head in %s: the head's GEMMs run in %s; drop the rows that match lm_head", r.Name, cast.DType, r.Compute)
		}
	}
	m.cacheWeights(m.head)
	m.table = m.embedTable()
	m.headIn = m.Scales.slot("lm_head.input", m.head.inputs()...)

	m.Scales.pack(vars)
	m.packChannels()
	m.Scales.one = vars.Tensor(backend.Input, "fp8.one", fp8.F32, 1)
	m.Scales.one.Value = 1
	for _, l := range m.linears {
		l.bindScales(&m.Scales)
	}
	return m, vars.Err()
}

func (m *Model) layer(scope string) *layer {
	l := &layer{}
	l.attnNorm = m.rmsNorm(scope + ".input_layernorm")
	l.attn = m.attention(scope + ".self_attn")
	l.mlpNorm = m.rmsNorm(scope + ".post_attention_layernorm")
	l.mlp = m.mlp(scope + ".mlp")
	l.mid = m.Scales.slot(l.attn.o.scope+".grad", append(l.attn.o.grads(), m.plainCast())...)
	l.out = m.outputGradSlot(l.mlp)
	return l
}

// embedTable returns the embedding table that micro-batches read: the master, or, if
// it is sharded, a copy in the compute format, to which looked-up rows are rounded
// anyway. A tied head already has that copy.
func (m *Model) embedTable() *backend.Tensor {
	switch {
	case m.embed.whole != nil:
		return m.embed.whole
	case m.Config.Tied:
		return m.head.cachedAs(m.head.fprop.b)
	case m.Recipe.Compute == fp8.F32:
		return m.wholeOf(m.embed)
	}
	return m.Vars.Tensor(backend.Stash, m.embed.Name+"."+m.Recipe.Compute.String(), m.Recipe.Compute, m.embed.Shape...)
}

// plainCast returns a copy in the compute format, without scales.
func (m *Model) plainCast() copySpec { return plain(m.Recipe.Compute) }

// Constants yields every persistent tensor of the model, parameters aside, whose
// initial value is not 0, with that value: scales are 1 until an amax is known.
func (m *Model) Constants() iter.Seq2[*backend.Tensor, float32] {
	return func(yield func(*backend.Tensor, float32) bool) {
		list := []*backend.Tensor{m.Scales.one}
		if !m.Scales.Empty() {
			list = append(list, m.Scales.Scale, m.Scales.ScaleInv)
		}
		for _, p := range m.Params {
			if p.Master.Scale != nil {
				list = append(list, p.Master.Scale)
			}
		}
		for _, t := range list {
			if !yield(t, 1) {
				return
			}
		}
	}
}

// Shape describes the batch of a pass and its device.
type Shape struct {
	Batch, Seq int
	Control    *backend.Tensor // step.control
	Ranks      int
	HeadTokens int // as in backend.Spec
}

// Pass starts recording a pass into an empty program.
func (m *Model) Pass(p *backend.Program, mode Mode, s Shape) *Pass {
	return &Pass{
		Program: p, Mode: mode, Batch: s.Batch, Seq: s.Seq, Control: s.Control,
		First: true, Last: true, Ranks: max(1, s.Ranks), headTokens: s.HeadTokens,
		compute: m.Recipe.Compute, scales: &m.Scales, root: p.At(""),
	}
}

// layersForward appends the embedding and all layers and returns the residual
// stream after the last one.
func (m *Model) layersForward(p *Pass, tokens *backend.Tensor) (*backend.Tensor, []*layerSaved) {
	x, cast := p.store("embed.out", p.Tokens(), m.Config.Dim)
	p.named("embed").Add(&backend.Embed{Table: m.table, IDs: tokens, Out: cast})
	saved := make([]*layerSaved, len(m.layers))
	for i, l := range m.layers {
		x, saved[i] = l.forward(p.inBlock(fmt.Sprintf("layers.%d.fwd", i)), i, x)
	}
	return x, saved
}

type layerSaved struct {
	attnNorm, mlpNorm *normSaved
	attn              *attentionSaved
	mlp               *mlpSaved
}

func (l *layer) forward(p *Pass, i int, x *backend.Tensor) (*backend.Tensor, *layerSaved) {
	s := &layerSaved{}
	var h *copySet
	h, s.attnNorm = l.attnNorm.Forward(p, x, l.attn.input)
	x, s.attn = l.attn.Forward(p, i, h, x)
	h, s.mlpNorm = l.mlpNorm.Forward(p, x, l.mlp.input)
	x, s.mlp = l.mlp.Forward(p, h, x)
	return x, s
}

// backward returns the gradient of the layer's input in the copies of slot below.
func (l *layer) backward(p *Pass, s *layerSaved, dy *copySet, below *slot) *copySet {
	dx := l.mlp.Backward(p, s.mlp, dy)
	mid := l.mlpNorm.Backward(p, s.mlpNorm, dx, p.plain(dy), l.mid)
	dx = l.attn.Backward(p, s.attn, mid)
	return l.attnNorm.Backward(p, s.attnNorm, dx, p.plain(mid), below)
}

// Loss appends a forward pass and each token's cross-entropy: F32 [tokens],
// in nats, 0 where the target is negative.
func (m *Model) Loss(p *Pass, tokens, targets *backend.Tensor) *backend.Tensor {
	x, _ := m.layersForward(p, tokens)
	h, _ := m.norm.Forward(p, x, m.headIn)
	losses, _ := m.headLoss(p, h, targets, false)
	return losses
}

// LossAndGrads appends a forward and a backward pass. It returns the losses of
// Loss; gradients are of their sum times Control.InvTokens.
func (m *Model) LossAndGrads(p *Pass, tokens, targets *backend.Tensor) *backend.Tensor {
	if p.First {
		m.clearRecords(p)
	}
	x, saved := m.layersForward(p, tokens)
	h, normSaved := m.norm.Forward(p, x, m.headIn)
	losses, dh := m.headLoss(p, h, targets, true)

	q := p.backward()
	below := func(i int) *slot {
		if i == 0 {
			return m.embedGradSlot()
		}
		return m.layers[i-1].out
	}
	dx := m.norm.Backward(q, normSaved, dh, nil, below(len(m.layers)))
	for i := len(m.layers) - 1; i >= 0; i-- {
		dx = m.layers[i].backward(q.inBlock(fmt.Sprintf("layers.%d.bwd", i)), saved[i], dx, below(i))
	}
	q.named("embed").Add(&backend.EmbedGrad{
		IDs: tokens, DOut: q.plain(dx), DTable: m.embed.Grad,
		Accumulate: !p.First || m.Config.Tied,
	})
	q.complete(m.embed)
	return losses
}

func (m *Model) embedGradSlot() *slot {
	return m.Scales.slot("embed.grad", m.plainCast())
}

// clearRecords zeroes the maxima that the micro-batches of a step accumulate.
func (m *Model) clearRecords(p *Pass) {
	m.Scales.clear(p.Program, false)
	if m.ChannelMax != nil {
		p.Add(&backend.Fill{Out: m.ChannelMax})
	}
}

// UpdateScales appends, to an update program, the new history and scale of
// every record. Nothing changes if the tensor skip is 1; nil never skips.
func (m *Model) UpdateScales(p *backend.Program, skip *backend.Tensor) {
	m.Scales.update(p, skip)
	if m.ChannelMax != nil {
		p.Add(&backend.PushHistory{Value: m.ChannelMax, Skip: skip, History: m.ChannelHistory})
	}
}

// CastWeights appends the casts of all weights from their masters. They run at
// the end of an update and after masters and scales were loaded.
func (m *Model) CastWeights(p *Pass) {
	m.Scales.clear(p.Program, true)
	for _, w := range m.Params {
		if w.Sharded() && w.whole != nil {
			p.comm().Add(&backend.AllGather{X: w.Master, Out: w.whole})
		}
	}
	if m.embed.whole == nil && !m.Config.Tied {
		q := p.at("embed")
		q.Add(&backend.Quantize{X: q.gather(m.embed, "weight.whole"), Out: []backend.Cast{{Out: m.table}}})
	}
	for _, l := range m.linears {
		if l.copies != nil {
			l.castWeight(p.at(l.scope))
		}
	}
	for _, l := range m.layers {
		l.mlp.prepare(p)
	}
}
