package nn_test

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	_ "octet/backend/emu"
	"octet/nn"
)

// smallDecoder is a decoder of two layers.
func smallDecoder(edit func(*nn.Config)) nn.Config {
	c := nn.Config{
		Layers: 2, Dim: 8, Heads: 2, KVHeads: 2, FFN: 12, Vocab: 19,
		Activation: nn.SwiGLU, RopeTheta: 100, NormEps: 1e-12, InitStd: 0.02,
	}
	edit(&c)
	return c
}

// multiply multiplies the parameters with this suffix.
func multiply(lp *lossProblem, suffix string, times float64) {
	for _, p := range lp.model.Params {
		if strings.HasSuffix(p.Name, suffix) {
			x := lp.values(p.Master)
			for i := range x {
				x[i] *= times
			}
			require.NoError(lp.t, lp.dev.SetValues(p.Master, x))
		}
	}
}

// lossWith returns the loss of a small decoder before and after multiply.
func lossWith(t *testing.T, edit func(*nn.Config), suffix string, times float64) (before, after float64) {
	lp := newLossProblem(t, smallDecoder(edit), 5)
	before = lp.value()
	multiply(lp, suffix, times)
	return before, lp.value()
}

// Norms of queries and keys take their scale out of the loss, and norms of results that of
// attention and MLP. The controls, without them, move.
func TestNormsBoundWhatTheyNormalize(t *testing.T) {
	for _, c := range []struct {
		name, suffix string
		times        float64
		edit         func(*nn.Config)
		same         bool
	}{
		{"qk none", "q_proj.weight", 1000, func(c *nn.Config) {}, false},
		{"qk learned", "q_proj.weight", 1000, func(c *nn.Config) { c.QKNorm = nn.LearnedQKNorm }, true},
		{"qk frozen", "q_proj.weight", 1000, func(c *nn.Config) { c.QKNorm = nn.FrozenQKNorm }, true},
		{"qk frozen, keys", "k_proj.weight", 1000, func(c *nn.Config) { c.QKNorm = nn.FrozenQKNorm }, true},
		{"pre, attention", "o_proj.weight", 100, func(c *nn.Config) {}, false},
		{"post, attention", "o_proj.weight", 100, func(c *nn.Config) { c.Norm = nn.PostNorm }, true},
		{"both, MLP", "down_proj.weight", 100, func(c *nn.Config) { c.Norm = nn.BothNorms }, true},
		{"pre, MLP", "down_proj.weight", 100, func(c *nn.Config) {}, false},
	} {
		before, after := lossWith(t, c.edit, c.suffix, c.times)
		moved := math.Abs(after/before - 1)
		t.Logf("%-16s %s times %v: loss %.6f, %.6f", c.name, c.suffix, c.times, before, after)
		if c.same {
			require.Less(t, moved, 1e-6, c.name)
		} else {
			require.Greater(t, moved, 0.01, c.name)
		}
	}
}

// The embedding's scale multiplies what it returns: with twice the scale and half the weights the
// loss is the same. A layer scale of 0 removes attention and MLP: their weights do not matter.
func TestScalesMultiply(t *testing.T) {
	once, _ := lossWith(t, func(c *nn.Config) {}, "none", 1)
	_, half := lossWith(t, func(c *nn.Config) { c.EmbedScale = 2 }, "embed_tokens.weight", 0.5)
	require.InEpsilon(t, once, half, 1e-12)

	lp := newLossProblem(t, smallDecoder(func(c *nn.Config) { c.LayerScale = new(0.5) }), 5)
	var losses []float64
	for _, suffix := range []string{"layer_scale.weight", "o_proj.weight", "down_proj.weight"} {
		multiply(lp, suffix, 0)
		losses = append(losses, lp.value())
	}
	require.Equal(t, losses[0], losses[1])
	require.Equal(t, losses[0], losses[2])
}

// The norms of queries and keys precede the rotation, as in Qwen3.
func TestHeadsAreNormalizedBeforeTheRotation(t *testing.T) {
	lp := newLossProblem(t, smallDecoder(func(c *nn.Config) { c.QKNorm = nn.LearnedQKNorm }), 5)
	rotations := 0
	for _, n := range lp.program.Nodes() {
		if op, ok := n.Op.(*backend.Rope); ok && !op.Inverse {
			rotations++
			require.Regexp(t, `_norm\.out$`, op.X.Name)
		}
	}
	require.Equal(t, 4, rotations, "queries and keys of two layers")
}

// Initial values: the gains of norms of results, layer scales, and 1/√in for fan-in.
func TestInitialValues(t *testing.T) {
	c := nn.Config{
		Layers: 1, Dim: 64, Heads: 2, KVHeads: 2, FFN: 256, Vocab: 100, Activation: nn.SwiGLU,
		RopeTheta: 100, NormEps: 1e-5, InitStd: 0.02, FanIn: true, Norm: nn.PostNorm, NormGain: 0.25,
	}
	for name, want := range map[string]float64{
		"down_proj.weight": 1.0 / 16, "o_proj.weight": 1.0 / 8, "lm_head.weight": 1.0 / 8,
		"embed_tokens.weight": 0.02, "mlp.post_norm.weight": 0.25, "model.norm.weight": 1,
	} {
		lp := newLossProblem(t, c, 5)
		for _, p := range lp.model.Params {
			if strings.HasSuffix(p.Name, name) {
				sum, x := 0.0, p.Init(1)[:p.Rows*p.Cols()]
				for _, v := range x {
					sum += float64(v) * float64(v)
				}
				require.InEpsilon(t, want, math.Sqrt(sum/float64(len(x))), 0.05, name)
			}
		}
	}
	c.LayerScale = new(0.5)
	require.ErrorContains(t, c.Validate(), "use model.norm_gain")
	c.Norm, c.QKNorm = "", "some"
	require.ErrorContains(t, c.Validate(), `model.qk_norm = "some"`)
	c.Norm = "none"
	require.ErrorContains(t, c.Validate(), `model.norm = "none"`)
}
