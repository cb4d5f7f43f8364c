package train

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A refusal of heads and rotations names the key and what to use.
func TestAttentionIsChecked(t *testing.T) {
	for _, test := range []struct {
		want string
		edit func(*Model)
	}{
		{
			"model.head_dim = 25 is odd, but rotary embeddings need an even head size; use 26",
			func(m *Model) { m.HeadDim = 25 },
		},
		{
			"model.head_dim = -1 is",
			func(m *Model) { m.HeadDim = -1 },
		},
		{
			"model.kv_heads = 3 does not divide model.heads = 4; use model.kv_heads = 4",
			func(m *Model) { m.HeadDim, m.KVHeads = 32, 3 },
		},
		{
			"model.kv_heads = 1 with model.head_dim = 24 gives a width of 24, not a multiple of 16, which FP8 GEMMs require; use model.head_dim = 32",
			func(m *Model) { m.HeadDim, m.KVHeads = 24, 1 },
		},
		{
			"model.dim = 100 is not a multiple of 16",
			func(m *Model) { m.HeadDim, m.Dim = 32, 100 },
		},
		{
			"model.rope_scaling = [8 1]: it has 2 numbers; use [factor, low_freq_factor, high_freq_factor, original_max_position_embeddings] as",
			func(m *Model) { m.RopeScaling = []float64{8, 1} },
		},
		{
			"model.rope_scaling = [0.5]: factor = 0.5: expected a number of at least 1",
			func(m *Model) { m.RopeScaling = []float64{0.5} },
		},
		{
			"model.rope_scaling = [8 4 1 64]: high_freq_factor = 1: expected more than low_freq_factor = 4",
			func(m *Model) { m.RopeScaling = []float64{8, 4, 1, 64} },
		},
		{
			"model.rope_scaling = [8 0 1 64]: low_freq_factor = 0: expected a positive number",
			func(m *Model) { m.RopeScaling = []float64{8, 0, 1, 64} },
		},
		{
			"model.rope_scaling = [8 1 4 64.5]: original_max_position_embeddings = 64.5: expected a whole number",
			func(m *Model) { m.RopeScaling = []float64{8, 1, 4, 64.5} },
		},
		{
			"model.rope_scaling = [8 1 4 0]: original_max_position_embeddings = 0: expected a whole number",
			func(m *Model) { m.RopeScaling = []float64{8, 1, 4, 0} },
		},
	} {
		c := Default()
		test.edit(&c.Model)
		require.ErrorContains(t, c.Validate([]string{c.Recipe}), test.want)
	}
	// Wide heads need no dim that the number of heads divides.
	c := small(t, "fp8-delayed")
	c.Model.Heads, c.Model.KVHeads, c.Model.HeadDim = 3, 3, 16
	require.NoError(t, c.Resolve())
	c.Model.RopeScaling = []float64{1}
	require.NoError(t, c.Resolve())
	require.Zero(t, c.ModelConfig().RopeScaling, "a linear factor of 1")
	c.Model.Heads, c.Model.KVHeads = 2, 1
	require.Equal(t, HFConfig(small(t, "fp8-delayed")).HeadSize(), HFConfig(c).HeadSize())
	require.Zero(t, HFConfig(c).HeadDim, "dim / heads")
}

// Ranks that share the optimizer state train as those that do not, with biases and wide heads;
// a run of two ranks learns the biases alike.
func TestBiasesOfRanks(t *testing.T) {
	c := small(t, "fp8-smooth")
	normVariants["qwen2"](&c.Model)
	c.Model.HeadDim = 32
	c.Train.Ranks = 2
	want := steps(t, newTrainer(t, c, 1, false), 4)
	c.Train.ZeroStage = 1
	tr := newTrainer(t, c, 1, false)
	got := steps(t, tr, 4)
	for i := range want {
		require.InEpsilon(t, want[i].Loss, got[i].Loss, 1e-6)
		require.InEpsilon(t, want[i].GradNorm, got[i].GradNorm, 1e-5)
	}
	learned := 0
	for i, p := range tr.ranks[0].Model.Params {
		if other := tr.ranks[1].Model.Params[i]; !p.Matrix {
			require.Equal(t, values(t, tr.ranks[0], p.Master), values(t, tr.ranks[1], other.Master), p.Name)
		}
		if len(p.Name) > 5 && p.Name[len(p.Name)-5:] == ".bias" {
			require.NotContains(t, values(t, tr.ranks[0], p.Master), 0.0, p.Name)
			require.False(t, p.Matrix, "no weight decay")
			learned++
		}
	}
	require.Equal(t, 3*c.Model.Layers, learned)
}

// The gradients of biases add up over the micro-batches of a step.
func TestBiasesOfMicroBatches(t *testing.T) {
	c := small(t, "fp32")
	normVariants["qwen2"](&c.Model)
	c.Train.MicroBatch *= 2
	one := newTrainer(t, c, 1, false)
	want := steps(t, one, 3)
	c.Train.MicroBatch, c.Train.Accumulate = c.Train.MicroBatch/2, 2
	two := newTrainer(t, c, 1, false)
	got := steps(t, two, 3)
	for i := range want {
		require.InEpsilon(t, want[i].GradNorm, got[i].GradNorm, 1e-4)
	}
	for i, p := range one.ranks[0].Model.Params {
		if strings.HasSuffix(p.Name, ".bias") {
			require.InDeltaSlice(t, values(t, one.ranks[0], p.Master), values(t, two.ranks[0], two.ranks[0].Model.Params[i].Master), 1e-4, p.Name)
		}
	}
}
