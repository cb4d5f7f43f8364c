package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/checkpoint"
	"octet/internal/runs"
	"octet/study/internal/weights"
)

// The most aligned channel's activation grows κ times, its contribution to the output hardly changes,
// and no other weight does.
func TestAmplify(t *testing.T) {
	const at = "model.layers.0.mlp."
	m := &weights.Model{
		Config: checkpoint.Config{HiddenSize: 2, IntermediateSize: 3, NumHiddenLayers: 1},
		Tensors: map[string][]float32{
			at + "up_proj.weight":   {1, 0, 3, 4, 1, 1},
			at + "gate_proj.weight": {0, 1, 3, 4.5, 1, -1},
			at + "down_proj.weight": {1, 2, 3, 4, 5, 6},
			"lm_head.weight":        {7},
		},
	}
	const kappa = 256
	c := amplify(m, kappa)
	require.Equal(t, []float32{1, 0, 48, 64, 1, 1}, c.Tensors[at+"up_proj.weight"])
	require.Equal(t, []float32{0, 1, 48, 72, 1, -1}, c.Tensors[at+"gate_proj.weight"])
	require.Equal(t, []float32{1, 2. / kappa, 3, 4, 5. / kappa, 6}, c.Tensors[at+"down_proj.weight"])
	require.Equal(t, []float32{7}, c.Tensors["lm_head.weight"])
	require.Equal(t, float32(3), m.Tensors[at+"up_proj.weight"][2], "the model itself stays")

	activation := func(m *weights.Model, x [2]float64) float64 {
		row := func(name string) float64 {
			w := m.Tensors[at+name]
			return float64(w[2])*x[0] + float64(w[3])*x[1]
		}
		g := row("gate_proj.weight")
		return row("up_proj.weight") * g / (1 + math.Exp(-g))
	}
	x := [2]float64{0.7, 0.4} // a gate of 3.9
	require.InEpsilon(t, kappa, activation(c, x)/activation(m, x), 0.03, "but for the sigmoid of the gate")
}

func TestLossAt(t *testing.T) {
	r := &runs.Run{Metrics: map[string]*runs.Series{"val_loss": {Steps: []float64{5, 10}, Values: []float64{2, 1}}}}
	require.Equal(t, 2.0, lossAt(r, 5))
	require.Equal(t, 1.0, lossAt(r, -1))
	require.True(t, math.IsNaN(lossAt(r, 7)))
	require.True(t, math.IsNaN(lossAt(&runs.Run{}, 5)))
}

func TestExponent(t *testing.T) {
	exponent, err := exponentOf("sweeps/amplified/seed-3/k16/step-00000000")
	require.NoError(t, err)
	require.Equal(t, 16, exponent)
	_, err = exponentOf("planted/model")
	require.Error(t, err)
}
