package run

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/nn"
)

// A run's weights are computed in the run's recipe or in the one that is asked for, with
// the activation of that recipe.
func TestWeightsInARecipe(t *testing.T) {
	c := smoothConfig(t)
	c.Train.Steps, c.Checkpoint.Every = 1, 1
	dir := filepath.Join(t.TempDir(), "run")
	smoothRun(t, c, dir)
	for _, test := range []struct {
		asked, recipe string
		activation    nn.Activation
	}{
		{"", "fp8-smooth", nn.SmoothSwiGLU},
		{"fp8-smooth-token", "fp8-smooth-token", nn.SmoothSwiGLU},
		{"fp8-delayed", "fp8-delayed", nn.SwiGLU},
		{"bf16", "bf16", nn.SwiGLU},
	} {
		w, err := OpenWeights(dir, test.asked)
		require.NoError(t, err, test)
		require.Equal(t, test.recipe, w.Recipe.Name, test)
		require.Equal(t, test.activation, w.Model.Activation, test)
		require.NoError(t, w.Close())
	}
	_, err := OpenWeights(dir, "fp9")
	require.ErrorContains(t, err, `unknown recipe "fp9"`)
}
