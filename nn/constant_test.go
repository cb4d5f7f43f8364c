package nn_test

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
)

// Constant scales are those of muS: √in for weights, 1 for inputs, and the tokens of a step for
// gradients; with pow2 rounded down. No op changes them, whatever a checkpoint holds of others.
func TestConstantScales(t *testing.T) {
	for _, rounded := range []bool{false, true} {
		r, err := recipe.Lookup("mu-s")
		require.NoError(t, err)
		if rounded {
			r.Rows = append([]recipe.Row{{Scale: recipe.Pow2}}, r.Rows...)
		}
		declare := func() *nn.Model {
			m, err := nn.New(nn.Config{
				Layers: 1, Dim: 32, Heads: 2, KVHeads: 1, FFN: 48, Vocab: 300, Activation: nn.SwiGLU,
				RopeTheta: 1e4, NormEps: 1e-5, InitStd: 0.02, StepTokens: 96,
			}, r, backend.NewVars())
			require.NoError(t, err)
			return m
		}
		m := declare()
		written := map[*backend.Tensor]float32{}
		for x, value := range m.Constants() {
			written[x] = value
		}
		cast, update := m.Vars.Program("cast"), m.Vars.Program("update")
		m.CastWeights(m.Pass(cast, nn.Train, nn.Shape{}))
		m.UpdateScales(update, nil)
		require.NoError(t, update.Err())
		for _, p := range []*backend.Program{update, cast, micro(t, declare(), nn.Calibrate), micro(t, declare(), nn.Frozen)} {
			for _, n := range p.Nodes() {
				_, updates := n.Op.(*backend.UpdateScale)
				require.False(t, updates, n.Path())
			}
		}

		want := map[string]float64{"input": 1, "hidden": 1, "grad": 96, "weight": math.Sqrt(32), "down": math.Sqrt(48)}
		if rounded {
			want["grad"], want["weight"], want["down"] = 64, 4, 4
		}
		seen := map[string]int{}
		for _, p := range []*backend.Program{micro(t, m, nn.Train), cast} {
			for _, n := range p.Nodes() {
				for c := range backend.Casts(n.Op) {
					if !c.Out.DType.IsQuantized() {
						continue
					}
					kind := "input"
					switch name := c.Out.Name; {
					case strings.Contains(name, "down_proj.weight"):
						kind = "down"
					case strings.Contains(name, ".weight"):
						kind = "weight"
					case strings.Contains(name, ".grad."):
						kind = "grad"
					}
					seen[kind]++
					require.InEpsilon(t, want[kind], written[c.Scale], 1e-7, c.Out.Name)
					require.InEpsilon(t, 1/want[kind], written[c.Out.Scale], 1e-7, c.Out.Name)
					require.NotNil(t, c.Amax, "for reports")
				}
			}
		}
		require.Equal(t, map[string]int{"input": 4, "grad": 7, "weight": 6, "down": 1}, seen)
	}
}

// A constant scale has no meaning where the size of the tensor is not known.
func TestConstantScalesAreRefused(t *testing.T) {
	for want, row := range map[string]recipe.Row{
		"scales of granularity row can only be current": {Granularity: recipe.PerRow},
		"int8 has no NaN": {DType: fp8.INT8},
	} {
		_, err := model(t, "mu-s", row)
		require.ErrorContains(t, err, want)
	}
	r, err := recipe.Lookup("fp16")
	require.NoError(t, err)
	r.Rows = []recipe.Row{{DType: fp8.E4M3, Scaling: recipe.Constant}}
	require.ErrorContains(t, r.Validate(), "recipe fp16, row 1: scaling constant needs gradients whose size is known")
	r, err = recipe.Lookup("fp8-smooth")
	require.NoError(t, err)
	r.Smooth.Hidden = recipe.Constant
	require.ErrorContains(t, r.Validate(), "no scaling direction or constant")
}
