package train

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Default returns the documented values.
func TestDefault(t *testing.T) {
	require.Equal(t, Config{
		Recipe: "fp8-smooth", Seed: 1,
		Model: Model{
			Preset: "tiny", Layers: 3, Dim: 128, Heads: 4, KVHeads: 4, FFN: 352, Vocab: 256,
			RopeTheta: 10000, NormEps: 1e-5, InitStd: 0.06, InitRule: "fixed",
			Norm: "pre", NormGain: 1, FinalNorm: true, QKNorm: "none", EmbedScale: 1,
			ExpertsPerToken: 2, ExpertCapacity: 1.25, RouterAuxLoss: 0.01,
		},
		Data:  Data{Seq: 256, ValBytes: 200000, Packing: "stream", Loss: "all", Attention: "causal"},
		Train: Loop{Steps: 1800, Objective: "cross-entropy", DPOBeta: 0.1, MicroBatch: 8, Accumulate: 1, Ranks: 1, Tensor: 1, EvalEvery: 200, HealthEvery: 100, Recompute: "none", OnNonfinite: 10, OnSpike: "log"},
		Optimizer: Optimizer{
			LR: 2e-3, MinLR: 2e-4, Warmup: 0.05, Schedule: "cosine", Betas: [2]float64{0.9, 0.95},
			Eps: 1e-8, EpsForm: "hat", WeightDecay: 0.1, Clip: 1, LossScale: 65536,
			Kind: "adamw", Momentum: 0.95, NSSteps: 5,
		},
		Checkpoint: Checkpoint{Every: 200, KeepLast: 2, OnError: "stop"},
	}, Default())
}

// matrices returns the number of parameters in all matrices.
func (m Model) matrices() int {
	head := m.Dim / m.Heads
	layer := 2*m.Dim*m.Dim + 2*m.Dim*m.KVHeads*head + 3*m.Dim*m.FFN
	tables := 2
	if m.Tied {
		tables = 1
	}
	return m.Layers*layer + tables*m.Vocab*m.Dim
}

func TestPresets(t *testing.T) {
	params := map[string]float64{ // millions; published figures for the large models
		"tiny": 0.67, "small": 13.76, "124m": 124, "1b": 1345, "llama2-7b": 6738, "llama3-8b": 8030,
		"llama3-70b": 70554, "llama3-405b": 405853,
	}
	seq := map[string]int{"tiny": 256, "small": 256, "124m": 1024, "1b": 2048, "llama2-7b": 4096, "llama3-8b": 8192, "llama3-70b": 8192, "llama3-405b": 8192}
	require.Equal(t, []string{"tiny", "small", "124m", "1b", "llama2-7b", "llama3-8b", "llama3-70b", "llama3-405b"}, PresetNames())
	for _, name := range PresetNames() {
		c, err := Preset(name)
		require.NoError(t, err)
		require.NoError(t, c.Validate([]string{"fp8-smooth"}), name)
		require.Equal(t, name, c.Model.Preset)
		require.Equal(t, seq[name], c.Data.Seq)
		require.InEpsilon(t, params[name]*1e6, c.Model.matrices(), 0.01, name)
	}
	_, err := Preset("13b")
	require.ErrorContains(t, err, "tiny, small, 124m, 1b, llama2-7b, llama3-8b, llama3-70b, llama3-405b")
}

// Every key has a tag, and config.toml's comments stay on one line.
func TestConfigTags(t *testing.T) {
	var walk func(reflect.Type)
	walk = func(s reflect.Type) {
		for i := range s.NumField() {
			f := s.Field(i)
			require.NotEmpty(t, f.Tag.Get("toml"), f.Name)
			require.NotContains(t, f.Tag.Get("doc"), "\n", f.Name)
			if f.Type.Kind() == reflect.Struct {
				walk(f.Type)
			}
		}
	}
	walk(reflect.TypeFor[Config]())
	for _, name := range PresetNames() {
		f, _ := reflect.TypeFor[Model]().FieldByName("Preset")
		require.Contains(t, strings.Fields(f.Tag.Get("doc")), name)
	}
}

func TestFillAndForgetRecipe(t *testing.T) {
	choices := func(activation, m1 string, history int) RecipeChoices {
		margin, gradMargin := 0, 4
		return RecipeChoices{activation, Precision{
			Master: "fp16", M1: m1, M2: "e5m2", Rounding: "stochastic",
			History: &history, Margin: &margin, GradMargin: &gradMargin,
		}}
	}
	smooth, other := choices("smooth-swiglu", "e4m3", 16), choices("swiglu", "fp32", 16)

	c := Default()
	five := 5
	c.Precision.GradMargin = &five
	c.Precision.Rows = []PrecisionRow{{Scope: "layers.0.*", Format: "bf16"}}
	given := c
	c.FillFromRecipe(smooth)
	require.Equal(t, "smooth-swiglu", c.Model.Activation)
	require.Equal(t, "e4m3", c.Precision.M1)
	require.Equal(t, 0, *c.Precision.Margin)
	require.Equal(t, 5, *c.Precision.GradMargin, "FillFromRecipe keeps a given key")
	require.Equal(t, given.Precision.Rows, c.Precision.Rows)

	c.ForgetRecipe(smooth)
	require.Equal(t, given, c, "only the fields that the user gave are left")
	c.FillFromRecipe(other)
	require.Equal(t, "swiglu", c.Model.Activation)
	require.Equal(t, "fp32", c.Precision.M1)
	require.Equal(t, 5, *c.Precision.GradMargin)
}
