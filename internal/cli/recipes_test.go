package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// recipeFile writes a recipe file with one row, fp8-smooth with some layers in BF16.
func recipeFile(t *testing.T, name, scope string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	text := "recipe = \"fp8-smooth\"\n[[precision.rows]]\nscope = \"" + scope + "\"\nformat = \"bf16\"\n"
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// recipes shows a model that has the layers which a recipe file names, and says its depth.
func TestRecipesShowsNumberedLayers(t *testing.T) {
	for i, test := range []struct{ scope, row, depth string }{
		{"layers.2.mlp.*", "layers.2.mlp.up,gate,down", "a model of 3 layers,"},
		{"layers.9.mlp.*", "layers.9.mlp.up,gate,down", "a model of 10 layers,"},
		{"layers.1[0-9].mlp.*", "layers.10.mlp.up,gate,down", "a model of 11 layers,"},
	} {
		path := recipeFile(t, fmt.Sprintf("numbered-%d.toml", i), test.scope)
		out, _ := succeed(t, "recipes", path)
		require.Contains(t, out, "\n"+test.row+"\n", test.scope)
		require.Contains(t, out, "\nnote: the table shows "+test.depth, test.scope)
	}
	out, _ := succeed(t, "recipes", recipeFile(t, "any-layer.toml", "layers.*.mlp.up_proj"))
	require.NotContains(t, out, "note:")
}

// recipes says that no GEMM of the table reads a format with scales.
func TestRecipesWithoutScales(t *testing.T) {
	path := filepath.Join(t.TempDir(), "all-wide.toml")
	require.NoError(t, os.WriteFile(path, []byte("recipe = \"mxfp8\"\n[[precision.rows]]\nscope = \"layers.*\"\nformat = \"bf16\"\n"), 0o600))
	out, _ := succeed(t, "recipes", path)
	require.Contains(t, strings.Join(strings.Fields(out), " "), "note: no GEMM of this model reads a format with scales: other rows of recipe all-wide take all 22 linear layers")
}

// plan and train name a recipe file's rows that match no layer of the model.
func TestRecipeRowOfNoLayer(t *testing.T) {
	path := recipeFile(t, "too-deep.toml", "layers.7.mlp.*")
	const note = "\nnote: the row with scope \"layers.7.mlp.*\" matches no layer of this model\n"
	out, _ := succeed(t, "plan", "--recipe", path)
	require.Contains(t, out, note)
	out, _ = succeed(t, "plan", "--recipe", path, "model.layers=8")
	require.NotContains(t, out, "note:")
	_, stderr := succeed(t, trainArgs(corpus(t, 20_000), filepath.Join(t.TempDir(), "run"), 1, "--recipe", path)...)
	require.Contains(t, stderr, note)
}
