package train

import (
	"fmt"

	"octet/checkpoint"
	"octet/nn"
)

// HFConfig returns the model as a Hugging Face config.
func HFConfig(c Config) checkpoint.Config {
	act := map[nn.Activation]string{nn.GELU: "gelu", nn.ReLU: "relu"}[nn.Activation(c.Model.Activation)]
	if act == "" {
		act = "silu"
	}
	m := c.Model
	return checkpoint.Config{
		HiddenSize: m.Dim, IntermediateSize: m.FFN, NumHiddenLayers: m.Layers,
		NumAttentionHeads: m.Heads, NumKeyValueHeads: m.KVHeads, VocabSize: m.Vocab,
		MaxPositionEmbeddings: c.Data.Seq, RMSNormEps: m.NormEps, RopeTheta: m.RopeTheta,
		TieWordEmbeddings: m.Tied, HiddenAct: act, TorchDType: "float32",
	}
}

// FromHF converts a Hugging Face config to an nn.Config. It returns an error for a
// model that nn cannot build and for one beyond the limits of [Config.Validate],
// before anything of the model's size is allocated.
func FromHF(c checkpoint.Config) (nn.Config, error) {
	m := nn.Config{
		Layers: c.NumHiddenLayers, Dim: c.HiddenSize, Heads: c.NumAttentionHeads, KVHeads: c.NumKeyValueHeads,
		FFN: c.IntermediateSize, Vocab: c.VocabSize, Tied: c.TieWordEmbeddings, Activation: activationOf(c),
		RopeTheta: c.RopeTheta, NormEps: c.RMSNormEps, InitStd: 0.02,
	}
	if m.Layers > maxLayers {
		return m, fmt.Errorf("num_hidden_layers = %d: octet supports at most %d", m.Layers, maxLayers)
	}
	if n := parameters(m); n > maxElements {
		return m, fmt.Errorf("it describes about %.2g parameters, more than the supported %.0e", n, maxElements)
	}
	return m, m.Validate()
}

func activationOf(c checkpoint.Config) nn.Activation {
	if a := map[string]nn.Activation{"gelu": nn.GELU, "relu": nn.ReLU}[c.HiddenAct]; a != "" {
		return a
	}
	return nn.SwiGLU
}
