package train

import (
	"octet/checkpoint"
	"octet/nn"
)

// HFConfig is the model in Hugging Face's words.
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

// FromHF is the inverse: a model as package infer and nn want it.
func FromHF(c checkpoint.Config) nn.Config {
	activation := map[string]nn.Activation{"gelu": nn.GELU, "relu": nn.ReLU}[c.HiddenAct]
	if activation == "" {
		activation = nn.SwiGLU
	}
	return nn.Config{
		Layers: c.NumHiddenLayers, Dim: c.HiddenSize, Heads: c.NumAttentionHeads, KVHeads: c.NumKeyValueHeads,
		FFN: c.IntermediateSize, Vocab: c.VocabSize, Tied: c.TieWordEmbeddings, Activation: activation,
		RopeTheta: c.RopeTheta, NormEps: c.RMSNormEps, InitStd: 0.02,
	}
}
