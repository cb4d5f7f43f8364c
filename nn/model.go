package nn

import (
	"fmt"

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
	norm      *RMSNorm // the final norm, or nil
	head      *Head
}

// layer is one decoder layer.
type layer struct {
	attn       *Attention
	mlp        *MLP
	moe        *MoE    // instead of mlp, or nil
	first, mid *branch // of attention, and of the MLP
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
	b.ParamPrefix, b.Shards, b.Stage, b.Tensor, b.StepTokens = "model.", c.Shards, c.Stage, c.Tensor, c.StepTokens
	m := &Model{Base: b, Config: c, embed: b.Embedding("embed", "embed_tokens", c.Vocab, c.Dim, c.InitStd)}
	m.embedGrad = b.Slot("embed.grad", b.Plain())
	for i := range c.Layers {
		m.layers = append(m.layers, m.layer(fmt.Sprintf("layers.%d", i)))
	}
	if !c.NoFinalNorm {
		m.norm = b.RMSNorm("norm", c.Dim, c.NormEps)
	}
	if c.Tied {
		m.head = b.TiedHead("lm_head", m.embed)
	} else {
		m.head = b.Head("lm_head", c.Vocab, c.Dim, c.std(c.Dim))
	}
	return m, b.Build()
}

func (m *Model) layer(scope string) *layer {
	c := m.Config
	l := &layer{}
	l.first = m.branch(scope+".input_layernorm", scope+".self_attn")
	l.attn = m.Attention(scope+".self_attn", AttentionShape{
		Dim: c.Dim, Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim(), RopeTheta: c.RopeTheta, RopeScaling: c.RopeScaling,
		InitStd: c.std(c.Dim), OutStd: c.outStd(c.Heads * c.HeadDim()), QKVBias: c.QKVBias, QKNorm: c.QKNorm, NormEps: c.NormEps,
	})
	l.mid = m.branch(scope+".post_attention_layernorm", scope+".mlp")
	shape := MLPShape{Dim: c.Dim, FFN: c.FFN, Activation: c.Activation, InitStd: c.std(c.Dim), OutStd: c.outStd(c.FFN)}
	var input *Slot
	var grad func(*Base) *Slot
	if c.MoE.Experts > 0 {
		l.moe = m.MoE(scope, c.MoE, shape)
		input, grad = l.moe.input, l.moe.OutputGrad
	} else {
		l.mlp = m.MLP(scope+".mlp", shape)
		input, grad = l.mlp.input, l.mlp.OutputGrad
	}
	l.first.around(m.Base, l.attn.input, l.attn.OutputGrad(m.Base))
	l.mid.around(m.Base, input, grad(m.Base))
	return l
}

// layersForward appends the embedding and all layers and returns the residual
// stream after the last one.
func (m *Model) layersForward(p *Pass, tokens *backend.Tensor) (*backend.Tensor, []*layerSaved) {
	x := m.scaledEmbedding(p, "out", m.embed.Forward(p, tokens))
	saved := make([]*layerSaved, len(m.layers))
	for i, l := range m.layers {
		x, saved[i] = l.forward(p.InBlock(fmt.Sprintf("layers.%d.fwd", i)), x)
	}
	return x, saved
}

type layerSaved struct {
	first, mid *branchSaved
	attn       *attentionSaved
	mlp        *mlpSaved
	moe        *moeSaved
}

func (l *layer) forward(p *Pass, x *backend.Tensor) (*backend.Tensor, *layerSaved) {
	s := &layerSaved{}
	var h *Value
	var f *backend.Tensor
	h, s.first = l.first.enter(p, x)
	f, s.attn = l.attn.Forward(p, h, l.first.residual(x))
	x = l.first.leave(p, x, f, s.first)
	h, s.mid = l.mid.enter(p, x)
	if l.moe != nil {
		f, s.moe = l.moe.Forward(p, h, l.mid.residual(x))
	} else {
		f, s.mlp = l.mlp.Forward(p, h, l.mid.residual(x))
	}
	return l.mid.leave(p, x, f, s.mid), s
}

// Backward returns the gradient of the layer's input in the copies of slot below.
func (l *layer) backward(p *Pass, s *layerSaved, dy *Value, below *Slot) *Value {
	var dx *backend.Tensor
	if df := l.mid.outputGrad(p, s.mid, dy); l.moe != nil {
		dx = l.moe.Backward(p, s.moe, df)
	} else {
		dx = l.mlp.Backward(p, s.mlp, df)
	}
	mid := l.mid.inputGrad(p, s.mid, dx, dy, l.first.out)
	dx = l.attn.Backward(p, s.attn, l.first.outputGrad(p, s.first, mid))
	return l.first.inputGrad(p, s.first, dx, mid, below)
}

// scaledEmbedding appends x · EmbedScale, for the embedding's result or its gradient.
func (m *Model) scaledEmbedding(p *Pass, name string, x *backend.Tensor) *backend.Tensor {
	if s := m.Config.EmbedScale; s != 0 && s != 1 {
		q := p.At(m.embed.scope + ".scale")
		y, cast := q.store(name, x.Rows(), x.Cols())
		q.Add(&backend.Quantize{X: x, ColScale: q.filled(name+".gain", x.Cols(), float32(s)), Out: cast})
		return y
	}
	return x
}

// finalNorm appends what the head reads.
func (m *Model) finalNorm(p *Pass, x *backend.Tensor) (*Value, *normSaved) {
	if m.norm == nil {
		return p.castStored(m.head.input, x), nil
	}
	return m.norm.Forward(p, x, m.head.input)
}

// Loss appends a forward pass and each token's cross-entropy: F32 [tokens],
// in nats, 0 where the target is negative.
func (m *Model) Loss(p *Pass, tokens, targets *backend.Tensor) *backend.Tensor {
	return m.LossAndLast(p, tokens, targets, nil)
}

// LossAndLast is Loss. It also writes the logits after the last token of each sequence to
// last, F32 [batch, padded vocabulary], unless that is nil.
func (m *Model) LossAndLast(p *Pass, tokens, targets, last *backend.Tensor) *backend.Tensor {
	x, _ := m.layersForward(p, tokens)
	h, _ := m.finalNorm(p, x)
	if last != nil {
		m.head.last(p, h, last)
	}
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
	h, normSaved := m.finalNorm(p, x)
	losses, dh := m.head.Loss(p, h, targets, true)

	q := p.Backward()
	below := func(i int) *Slot {
		if i == 0 {
			return m.embedGrad
		}
		return m.layers[i-1].mid.out
	}
	var dx *Value
	if top := below(len(m.layers)); m.norm != nil {
		dx = m.norm.Backward(q, normSaved, dh, nil, top)
	} else {
		dx = q.castStored(top, dh)
	}
	for i := len(m.layers) - 1; i >= 0; i-- {
		dx = m.layers[i].backward(q.InBlock(fmt.Sprintf("layers.%d.bwd", i)), saved[i], dx, below(i))
	}
	m.embed.Backward(q, tokens, m.scaledEmbedding(q, "grad", q.Plain(dx)), m.Config.Tied)
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
	h, _ := m.finalNorm(p, x)
	m.head.Logits(p, h, out)
}
