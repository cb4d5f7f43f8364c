package run

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/nn"
)

// Weights get the run's recipe or the requested one, and the activation of that recipe.
func TestWeightsInARecipe(t *testing.T) {
	c := smoothConfig(t)
	c.Train.Steps, c.Checkpoint.Every = 1, 1
	dir := filepath.Join(t.TempDir(), "run")
	smoothRun(t, c, dir)
	for _, test := range []struct {
		requested, recipe string
		activation        nn.Activation
	}{
		{"", "fp8-smooth", nn.SmoothSwiGLU},
		{"fp8-smooth-token", "fp8-smooth-token", nn.SmoothSwiGLU},
		{"fp8-delayed", "fp8-delayed", nn.SwiGLU},
		{"bf16", "bf16", nn.SwiGLU},
	} {
		w, err := OpenWeights(dir, test.requested)
		require.NoError(t, err, test)
		require.Equal(t, test.recipe, w.Recipe.Name, test)
		require.Equal(t, test.activation, w.Model.Activation, test)
		require.NoError(t, w.Close())
	}
	_, err := OpenWeights(dir, "fp9")
	require.ErrorContains(t, err, `unknown recipe "fp9"`)
}
