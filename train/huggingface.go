package train

import (
	"cmp"
	"fmt"

	"octet/checkpoint"
	"octet/nn"
)

// HFConfig returns the model as a Hugging Face config. Its activation is known or not
// filled in.
func HFConfig(c Config) checkpoint.Config {
	m := c.Model
	act, gated := m.Activation, true
	switch nn.Activation(act) {
	case "", nn.SwiGLU, nn.SmoothSwiGLU: // recipes choose between the latter
		act = "silu"
	default:
		f, _ := nn.LookupActivation(nn.Activation(act))
		gated = f.Gated
	}
	return checkpoint.Config{
		HiddenSize: m.Dim, IntermediateSize: m.FFN, NumHiddenLayers: m.Layers,
		NumAttentionHeads: m.Heads, NumKeyValueHeads: m.KVHeads, VocabSize: m.Vocab,
		MaxPositionEmbeddings: c.Data.Seq, RMSNormEps: m.NormEps, RopeTheta: m.RopeTheta, RopeScaling: m.ropeScaling(),
		HeadDim: m.hfHeadDim(), QKVBias: m.QKVBias,
		TieWordEmbeddings: m.Tied, HiddenAct: act, Gated: gated, TorchDType: "float32", Norms: m.hfNorms(),
		Experts: m.hfExperts(),
	}
}

// SetShape sets the sizes and the parts of the model to those of a Hugging Face config, of which
// HFConfig then is the inverse. What a run decides, such as initial values, stays.
func (m *Model) SetShape(c checkpoint.Config) {
	m.Layers, m.Dim, m.Heads, m.KVHeads, m.HeadDim = c.NumHiddenLayers, c.HiddenSize, c.NumAttentionHeads, c.NumKeyValueHeads, c.HeadDim
	m.FFN, m.Vocab, m.Tied = c.IntermediateSize, c.VocabSize, c.TieWordEmbeddings
	m.Activation = c.HiddenAct
	if m.Activation == "silu" {
		m.Activation = "" // swiglu or smooth-swiglu: the recipe decides
	}
	m.RopeTheta, m.NormEps, m.QKVBias, m.RopeScaling = c.RopeTheta, c.RMSNormEps, c.QKVBias, nil
	switch s := c.RopeScaling; {
	case s.Original > 0:
		m.RopeScaling = []float64{s.Factor, s.LowFreq, s.HighFreq, float64(s.Original)}
	case s.Factor > 0:
		m.RopeScaling = []float64{s.Factor}
	}
	n := c.Norms
	m.Norm, m.QKNorm = cmp.Or(n.Norm, string(nn.PreNorm)), cmp.Or(n.QK, string(nn.NoQKNorm))
	m.FinalNorm, m.EmbedScale, m.LayerScale = !n.NoFinal, cmp.Or(n.EmbedScale, 1), nil
	if n.LayerScale {
		m.LayerScale = new(1.0) // the weights replace this value
	}
	m.Experts = c.Experts.Experts
	if m.Experts > 0 {
		m.ExpertsPerToken, m.RouterAuxLoss = c.Experts.PerToken, c.Experts.Aux
	}
}

// FromHF converts a Hugging Face config to an nn.Config. It returns an error for a model
// that nn cannot build, such as one with an unknown activation, and for one beyond the
// limits of [Config.Validate], before anything of the model's size is allocated.
func FromHF(c checkpoint.Config) (nn.Config, error) {
	m := nn.Config{
		Layers: c.NumHiddenLayers, Dim: c.HiddenSize, Heads: c.NumAttentionHeads, KVHeads: c.NumKeyValueHeads,
		FFN: c.IntermediateSize, Vocab: c.VocabSize, Tied: c.TieWordEmbeddings, Activation: activationOf(c),
		RopeTheta: c.RopeTheta, NormEps: c.RMSNormEps, InitStd: 0.02,
		HeadSize: c.HeadDim, RopeScaling: nn.RopeScaling(c.RopeScaling), QKVBias: c.QKVBias,
	}
	setHFNorms(&m, c.Norms)
	if e := c.Experts; e.Experts > 0 {
		m.MoE = nn.MoEShape{Experts: e.Experts, PerToken: e.PerToken, Capacity: float64(e.Experts), Aux: e.Aux}
	}
	switch f, err := nn.LookupActivation(m.Activation); {
	case err != nil:
		return m, fmt.Errorf("hidden_act: %w", err)
	case f.Gated != c.Gated:
		return m, fmt.Errorf("hidden_act = %q is gated: %t in these weights, %t in this program; use the program that trained them", c.HiddenAct, c.Gated, f.Gated)
	}
	if m.Layers > maxLayers {
		return m, fmt.Errorf("num_hidden_layers = %d: octet supports at most %d", m.Layers, maxLayers)
	}
	if n := parameters(m); n > maxElements {
		return m, fmt.Errorf("it describes about %.2g parameters, more than the supported %.0e", n, maxElements)
	}
	return m, m.Validate()
}

// hfHeadDim returns the width of a head, or 0 if it is dim / heads.
func (m Model) hfHeadDim() int {
	if m.HeadDim*m.Heads == m.Dim {
		return 0
	}
	return m.HeadDim
}

// ropeScaling returns model.rope_scaling: one number is a linear factor, four are Llama 3's.
// Validate refuses others.
func (m Model) ropeScaling() checkpoint.RopeScaling {
	switch s := m.RopeScaling; len(s) {
	case 1:
		if s[0] == 1 {
			break // scales nothing
		}
		return checkpoint.RopeScaling{Factor: s[0]}
	case 4:
		return checkpoint.RopeScaling{Factor: s[0], LowFreq: s[1], HighFreq: s[2], Original: int(s[3])}
	}
	return checkpoint.RopeScaling{}
}

func activationOf(c checkpoint.Config) nn.Activation {
	if c.HiddenAct == "silu" {
		return nn.SwiGLU
	}
	return nn.Activation(c.HiddenAct)
}
