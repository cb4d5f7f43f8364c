package train

import (
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/nn"
	"octet/recipe"
)

// normVariants are models with other norms than Llama's.
var normVariants = map[string]func(m *Model){
	"fog": func(m *Model) {
		m.Norm, m.NormGain, m.FinalNorm, m.QKNorm, m.EmbedScale = "post", 0.7, false, "frozen", 1/m.InitStd
	},
	"both":   func(m *Model) { m.Norm, m.QKNorm, m.InitRule = "both", "learned", "fan-in" },
	"scaled": func(m *Model) { m.LayerScale, m.FinalNorm, m.QKNorm = new(0.0), false, "learned" },
	"qwen3":  func(m *Model) { m.QKNorm, m.HeadDim = "learned", 32 },
	"qwen2":  func(m *Model) { m.QKVBias = true },
	"llama3": func(m *Model) { m.RopeScaling = []float64{8, 1, 4, 16} },
	"linear": func(m *Model) { m.RopeScaling = []float64{2} },
}

func withNorms(t *testing.T, recipeName, variant string) Config {
	c := small(t, recipeName)
	normVariants[variant](&c.Model)
	return c
}

// The programs of every recipe are valid with other norms, with and without recomputation.
func TestNormsRecord(t *testing.T) {
	for _, name := range recipe.Names() {
		for _, variant := range []string{"fog", "scaled", "qwen2", "llama3"} {
			c := withNorms(t, name, variant)
			c.Train.Recompute = "block"
			j, err := NewJob(c, specOf(t, "emu"))
			require.NoError(t, err, "%s %s", name, variant)
			for _, p := range j.Programs() {
				require.NoError(t, p.Err(), "%s %s", name, variant)
			}
		}
	}
}

// Models with other norms learn. Recomputation changes no bit, nor does a stop: after a restore
// steps and evaluation are those of a run without it.
func TestNormsTrain(t *testing.T) {
	for name, variants := range map[string][]string{
		"fp8-smooth": {"fog", "both", "scaled", "qwen3", "qwen2", "llama3"}, "fp8-delayed": {"qwen2"}, "mxfp8": {"qwen2"}, "fp8-smooth-token": {"fog"}, "fp8-head": {"fog", "scaled"},
	} {
		for _, variant := range variants {
			c := withNorms(t, name, variant)
			c.Train.Steps, c.Train.Accumulate = 8, 2
			whole := newTrainer(t, c, 2, false)
			want := steps(t, whole, 8)
			require.Less(t, want[7].Loss, want[0].Loss, "%s %s", name, variant)

			c.Train.Recompute = "block"
			stopped := newTrainer(t, c, 1, false)
			require.Equal(t, want[:4], steps(t, stopped, 4), "%s %s", name, variant)
			resumed := newTrainer(t, c, 1, false)
			require.NoError(t, resumed.Restore(t.Context(), snapshot(t, stopped)))
			require.Equal(t, want[4:], steps(t, resumed, 4), "%s %s", name, variant)
			a, err := whole.Evaluate(t.Context())
			require.NoError(t, err)
			b, err := resumed.Evaluate(t.Context())
			require.NoError(t, err)
			require.Equal(t, a, b, "%s %s", name, variant)
		}
	}
}

// With a layer scale of 0 the first step has no gradient but those of the layer scales, the final
// norm, the head and the embedding. The casts of gradients see an amax of 0, which keeps their scales; the
// next step has amaxes, and the layers learn.
func TestLayerScaleOfZero(t *testing.T) {
	c := small(t, "fp8-delayed")
	c.Model.LayerScale = new(0.0)
	c.Optimizer.Warmup = 0
	tr := newTrainer(t, c, 1, false)
	at := func(x *backend.Tensor) []float64 { return values(t, tr.ranks[0], x) }
	scales := tr.ranks[0].Model.Scales
	zeros := func() (grads, others int) {
		for i, name := range tr.ranks[0].Model.CastNames() {
			switch amax := at(scales.History)[i]; {
			case amax != 0:
			case strings.HasSuffix(name, ".grad.e5m2"):
				grads++
				require.Equal(t, 1.0, at(scales.Scale)[i], name)
			default:
				others++
			}
		}
		return
	}
	steps(t, tr, 1)
	for _, p := range tr.ranks[0].Model.Params {
		learns := p.Embedding || p.Head || p.Name == "model.norm.weight" || strings.HasSuffix(p.Name, "layer_scale.weight")
		require.Equal(t, learns, norm(at(p.Grad)) > 0, p.Name)
	}
	grads, others := zeros()
	require.Equal(t, 7*c.Model.Layers, grads, "the gradients of 7 matrices a layer")
	require.Zero(t, others)
	steps(t, tr, 1)
	grads, _ = zeros()
	require.Zero(t, grads)
	for _, p := range tr.ranks[0].Model.Params {
		require.NotZero(t, norm(at(p.Grad)), p.Name)
	}
}

func norm(x []float64) (sum float64) {
	for _, v := range x {
		sum += v * v
	}
	return sum
}

// A refusal names the key and what to use.
func TestNormsAreChecked(t *testing.T) {
	for want, edit := range map[string]func(m *Model){
		`model.norm = "off" is unknown; use one of pre, post, both`:            func(m *Model) { m.Norm = "off" },
		`model.layer_scale = 0.1 with model.norm = "post" would multiply`:      func(m *Model) { m.Norm, m.LayerScale = "post", new(0.1) },
		`model.norm_gain = 0.5 with model.norm = "pre"`:                        func(m *Model) { m.NormGain = 0.5 },
		`model.qk_norm = "yes" is unknown; use one of none, learned, frozen`:   func(m *Model) { m.QKNorm = "yes" },
		`model.init_rule = "fan_in" is unknown; use one of fixed, fan-in; did`: func(m *Model) { m.InitRule = "fan_in" },
		`model.embed_scale = 0 is not a positive number`:                       func(m *Model) { m.EmbedScale = 0 },
		`model.layer_scale = -1 is not a finite number of at least 0; use 0`:   func(m *Model) { m.LayerScale = new(-1.0) },
	} {
		c := Default()
		edit(&c.Model)
		require.ErrorContains(t, c.Validate([]string{c.Recipe}), want)
	}
}

// config.json holds the norms: it implies the same tensors and the same model.
func TestNormsInConfigJSON(t *testing.T) {
	for variant := range normVariants {
		c := withNorms(t, "bf16", variant)
		c.Model.Activation = "swiglu"
		m := c.ModelConfig()
		got, err := FromHF(HFConfig(c))
		require.NoError(t, err)
		got.InitStd, got.FanIn, got.NormGain = m.InitStd, m.FanIn, m.NormGain
		if m.LayerScale != nil {
			require.NotNil(t, got.LayerScale)
			got.LayerScale = m.LayerScale
		}
		require.Equal(t, m, got)

		bf16, err := recipe.Lookup("bf16")
		require.NoError(t, err)
		model, err := nn.New(got, bf16, backend.NewVars())
		require.NoError(t, err)
		want, layout := map[string][]int{}, maps.Collect(HFConfig(c).Layout())
		for _, p := range model.Params {
			want[p.Name] = append([]int{p.Rows}, p.Shape[1:]...)
		}
		require.Equal(t, want, layout, variant)
	}
	have, want := HFConfig(Default()), HFConfig(withNorms(t, "bf16", "fog"))
	require.ErrorContains(t, sameShape(have, want), "model.norm pre, not post final_norm=false qk_norm=frozen embed_scale=16.6")
}
