package nn

import (
	"fmt"
	"math"

	"octet/backend"
	"octet/recipe"
)

// Model is a Llama-style decoder.
type Model struct {
	*Base
	Config Config

	embed     *Embedding
	embedGrad *Slot
	layers    []*layer
	norm      *RMSNorm
	head      *Head
}

// layer is one decoder layer.
type layer struct {
	attnNorm, mlpNorm *RMSNorm
	attn              *Attention
	mlp               *MLP
	// gradients of the residual stream: mid after attention, out after the MLP
	mid, out *Slot
}

// New declares a model's tensors in vars.
func New(c Config, r recipe.Recipe, vars *backend.Vars) (*Model, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if r.NeedsLayers() {
		layers, err := c.Linears()
		if err != nil {
			return nil, err
		}
		r = r.Over(layers)
	}
	b, err := NewBase(r, vars)
	if err != nil {
		return nil, err
	}
	b.ParamPrefix, b.Shards = "model.", c.Shards
	m := &Model{Base: b, Config: c, embed: b.Embedding("embed", "embed_tokens", c.Vocab, c.Dim, c.InitStd)}
	m.embedGrad = b.Slot("embed.grad", b.Plain())
	for i := range c.Layers {
		m.layers = append(m.layers, m.layer(fmt.Sprintf("layers.%d", i)))
	}
	m.norm = b.RMSNorm("norm", c.Dim, c.NormEps)
	if c.Tied {
		m.head = b.TiedHead("lm_head", m.embed)
	} else {
		m.head = b.Head("lm_head", c.Vocab, c.Dim, c.InitStd)
	}
	return m, b.Build()
}

func (m *Model) layer(scope string) *layer {
	c := m.Config
	// The projections that add to the residual stream start smaller, so that its variance
	// does not grow with depth.
	outStd := c.InitStd / math.Sqrt(2*float64(c.Layers))
	l := &layer{}
	l.attnNorm = m.RMSNorm(scope+".input_layernorm", c.Dim, c.NormEps)
	l.attn = m.Attention(scope+".self_attn", AttentionShape{
		Dim: c.Dim, Heads: c.Heads, KVHeads: c.KVHeads, RopeTheta: c.RopeTheta, InitStd: c.InitStd, OutStd: outStd,
	})
	l.mlpNorm = m.RMSNorm(scope+".post_attention_layernorm", c.Dim, c.NormEps)
	l.mlp = m.MLP(scope+".mlp", MLPShape{Dim: c.Dim, FFN: c.FFN, Activation: c.Activation, InitStd: c.InitStd, OutStd: outStd})
	l.mid, l.out = l.attn.OutputGrad(m.Base), l.mlp.OutputGrad(m.Base)
	return l
}

// layersForward appends the embedding and all layers and returns the residual
// stream after the last one.
func (m *Model) layersForward(p *Pass, tokens *backend.Tensor) (*backend.Tensor, []*layerSaved) {
	x := m.embed.Forward(p, tokens)
	saved := make([]*layerSaved, len(m.layers))
	for i, l := range m.layers {
		x, saved[i] = l.forward(p.InBlock(fmt.Sprintf("layers.%d.fwd", i)), x)
	}
	return x, saved
}

type layerSaved struct {
	attnNorm, mlpNorm *normSaved
	attn              *attentionSaved
	mlp               *mlpSaved
}

func (l *layer) forward(p *Pass, x *backend.Tensor) (*backend.Tensor, *layerSaved) {
	s := &layerSaved{}
	var h *Value
	h, s.attnNorm = l.attnNorm.Forward(p, x, l.attn.input)
	x, s.attn = l.attn.Forward(p, h, x)
	h, s.mlpNorm = l.mlpNorm.Forward(p, x, l.mlp.input)
	x, s.mlp = l.mlp.Forward(p, h, x)
	return x, s
}

// Backward returns the gradient of the layer's input in the copies of slot below.
func (l *layer) backward(p *Pass, s *layerSaved, dy *Value, below *Slot) *Value {
	dx := l.mlp.Backward(p, s.mlp, dy)
	mid := l.mlpNorm.Backward(p, s.mlpNorm, dx, p.Plain(dy), l.mid)
	dx = l.attn.Backward(p, s.attn, mid)
	return l.attnNorm.Backward(p, s.attnNorm, dx, p.Plain(mid), below)
}

// Loss appends a forward pass and each token's cross-entropy: F32 [tokens],
// in nats, 0 where the target is negative.
func (m *Model) Loss(p *Pass, tokens, targets *backend.Tensor) *backend.Tensor {
	x, _ := m.layersForward(p, tokens)
	h, _ := m.norm.Forward(p, x, m.head.input)
	losses, _ := m.head.Loss(p, h, targets, false)
	return losses
}

// LossAndGrads appends a forward and a backward pass. It returns the losses of
// Loss; gradients are of their sum times Control.InvTokens.
func (m *Model) LossAndGrads(p *Pass, tokens, targets *backend.Tensor) *backend.Tensor {
	if p.First {
		m.ClearMaxima(p)
	}
	x, saved := m.layersForward(p, tokens)
	h, normSaved := m.norm.Forward(p, x, m.head.input)
	losses, dh := m.head.Loss(p, h, targets, true)

	q := p.Backward()
	below := func(i int) *Slot {
		if i == 0 {
			return m.embedGrad
		}
		return m.layers[i-1].out
	}
	dx := m.norm.Backward(q, normSaved, dh, nil, below(len(m.layers)))
	for i := len(m.layers) - 1; i >= 0; i-- {
		dx = m.layers[i].backward(q.InBlock(fmt.Sprintf("layers.%d.bwd", i)), saved[i], dx, below(i))
	}
	m.embed.Backward(q, tokens, q.Plain(dx), m.Config.Tied)
	return losses
}

// Prefill appends a pass that only fills the cache, with p.Seq positions from
// Control.Position on. Positions after the prompt get meaningless values;
// decoding overwrites them before it attends to them.
func (m *Model) Prefill(p *Pass, tokens *backend.Tensor) {
	m.layersForward(p, tokens)
}

// Logits appends a pass that fills the cache and writes the logits of every
// position: out is F32 [tokens, padded vocabulary].
func (m *Model) Logits(p *Pass, tokens, out *backend.Tensor) {
	x, _ := m.layersForward(p, tokens)
	h, _ := m.norm.Forward(p, x, m.head.input)
	m.head.Logits(p, h, out)
}
