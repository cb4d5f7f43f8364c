package train

import (
	"fmt"
	"strings"

	"octet/internal/spelling"
	"octet/nn"
)

// presets are the known model shapes, smallest first. tiny learns on a laptop
// within minutes, small and 124m take longer; the large ones are for GPU
// clusters and for octet plan.
var presets = []struct {
	model Model
	seq   int
}{
	// An InitStd of 0.02 is too small for a width of 128: queries and keys start so
	// close to zero that attention learns nothing for about a hundred steps, and
	// rounding decides when it starts to. See docs/convergence.md.
	{Model{Preset: "tiny", Layers: 3, Dim: 128, Heads: 4, KVHeads: 4, FFN: 352, Vocab: 256, InitStd: 0.06}, 256},
	{Model{Preset: "small", Layers: 6, Dim: 384, Heads: 6, KVHeads: 6, FFN: 1024, Vocab: 8192, Tied: true}, 256},
	{Model{Preset: "124m", Layers: 12, Dim: 768, Heads: 12, KVHeads: 12, FFN: 2048, Vocab: 50304, Tied: true}, 1024},
	{Model{Preset: "1b", Layers: 24, Dim: 2048, Heads: 16, KVHeads: 16, FFN: 5504, Vocab: 32000}, 2048},
	{Model{Preset: "llama2-7b", Layers: 32, Dim: 4096, Heads: 32, KVHeads: 32, FFN: 11008, Vocab: 32000}, 4096},
	{Model{Preset: "llama3-8b", Layers: 32, Dim: 4096, Heads: 32, KVHeads: 8, FFN: 14336, Vocab: 128256, RopeTheta: 500000}, 8192},
	{Model{Preset: "llama3-70b", Layers: 80, Dim: 8192, Heads: 64, KVHeads: 8, FFN: 28672, Vocab: 128256, RopeTheta: 500000}, 8192},
	{Model{Preset: "llama3-405b", Layers: 126, Dim: 16384, Heads: 128, KVHeads: 8, FFN: 53248, Vocab: 128256, RopeTheta: 500000}, 8192},
}

// PresetNames lists the presets, smallest first.
func PresetNames() []string {
	names := make([]string, len(presets))
	for i, p := range presets {
		names[i] = p.model.Preset
	}
	return names
}

// Default returns the config of the preset tiny: about 0.67M parameters, bytes as
// tokens, the recipe fp8-smooth.
func Default() Config {
	c, err := Preset("tiny")
	if err != nil {
		panic(err) // tiny is in the table above
	}
	return c
}

// Preset returns the default config with the model and sequence length of a preset.
func Preset(name string) (Config, error) {
	for _, p := range presets {
		if p.model.Preset != name {
			continue
		}
		c := Config{
			Recipe: "fp8-smooth",
			Seed:   1,
			Model:  p.model,
			Data:   Data{Seq: p.seq, ValBytes: 200_000, Packing: PackStream, Loss: LossAll, Attention: AttendCausal},
			Train: Loop{
				Steps: 1800, MicroBatch: 8, Accumulate: 1, Ranks: 1, Tensor: 1,
				Objective: ObjectiveCrossEntropy, DPOBeta: 0.1,
				EvalEvery: 200, HealthEvery: 100, Recompute: "none", OnNonfinite: 10, OnSpike: "log",
			},
			Optimizer: Optimizer{
				Kind: "adamw", Momentum: 0.95, NSSteps: 5,
				LR: 2e-3, MinLR: 2e-4, Warmup: 0.05, Schedule: "cosine",
				Betas: [2]float64{0.9, 0.95}, Eps: 1e-8, EpsForm: "hat",
				WeightDecay: 0.1, Clip: 1,
				LossScale: nn.InitialLossScale,
			},
			Checkpoint: Checkpoint{Every: 200, KeepLast: 2, OnError: "stop"},
		}
		if c.Model.RopeTheta == 0 {
			c.Model.RopeTheta = 10000
		}
		c.Model.NormEps = 1e-5
		c.Model.InitRule, c.Model.Norm, c.Model.QKNorm = "fixed", string(nn.PreNorm), string(nn.NoQKNorm)
		c.Model.NormGain, c.Model.FinalNorm, c.Model.EmbedScale = 1, true, 1
		// The coefficient is that of Switch Transformers (arXiv 2101.03961, 2.2), the capacity
		// that of ST-MoE (arXiv 2202.08906, table 15).
		c.Model.ExpertsPerToken, c.Model.ExpertCapacity, c.Model.RouterAuxLoss = 2, 1.25, 0.01
		if c.Model.InitStd == 0 {
			c.Model.InitStd = 0.02
		}
		return c, nil
	}
	return Config{}, fmt.Errorf("model.preset = %q: there is no such preset; use one of %s%s", name, strings.Join(PresetNames(), ", "), spelling.DidYouMean(name, PresetNames()))
}
