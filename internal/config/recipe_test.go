package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
	"octet/recipe"
	"octet/train"
)

// writeRecipe writes a recipe file of a name and returns its path.
func writeRecipe(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

const longHistory = `recipe = "fp8-smooth"
[precision]
history = 32
smooth = "token"
[[precision.rows]]
scope = "layers.0.mlp.*"
format = "bf16"
`

func TestRecipeFile(t *testing.T) {
	path := writeRecipe(t, "long-history.toml", longHistory)
	r, err := FindRecipe(path)
	require.NoError(t, err)
	require.Equal(t, "long-history", r.Name)
	require.Equal(t, 32, r.History)
	require.Equal(t, recipe.Token, r.Smooth.Form)
	require.Equal(t, fp8.BF16, r.Cast(recipe.Layer{Scope: "layers.0.mlp.up_proj"}, recipe.Fprop, recipe.Input).DType)
	require.Equal(t, fp8.E4M3, r.Cast(recipe.Layer{Scope: "layers.1.mlp.up_proj"}, recipe.Fprop, recipe.Input).DType)

	// The file stands wherever a recipe's name does, and trains as the same keys in a
	// configuration do.
	want := load(t, longHistory).Config
	for name, l := range map[string]*Loaded{
		"flag":       load(t, "", "recipe="+path),
		"other file": load(t, "recipe = '"+path+"'\n"),
	} {
		require.Equal(t, "long-history", l.Recipe, name)
		a, err := l.ResolvedRecipe()
		require.NoError(t, err)
		b, err := want.ResolvedRecipe()
		require.NoError(t, err)
		require.Equal(t, b.Rows, a.Rows, name)
		require.Equal(t, b.Smooth, a.Smooth, name)
		require.Equal(t, b.Optimizer, a.Optimizer, name)
		require.Equal(t, b.History, a.History, name)
		require.Equal(t, want.Model, l.Model, name)
	}

	// A path in a configuration file begins at the file's folder.
	dir := filepath.Dir(path)
	config := filepath.Join(dir, "run.toml")
	require.NoError(t, os.WriteFile(config, []byte("recipe = \"bf16\"\n[[precision.schedule]]\nstep = 10\nrecipe = \"long-history.toml\"\n"), 0o600))
	l, err := Load(Args{File: config})
	require.NoError(t, err)
	require.Equal(t, []train.RecipeChange{{Step: 10, Recipe: "long-history"}}, l.Precision.Schedule)

	// The written configuration names the file, which has to lie beside it.
	text, err := Marshal(l.Config)
	require.NoError(t, err)
	require.Contains(t, string(text), `recipe = "long-history.toml"`)
	require.Equal(t, "long-history", l.Precision.Schedule[0].Recipe, "Marshal leaves the config as it is")
	require.Equal(t, map[string]string{"long-history.toml": longHistory}, RecipeFiles(l.Config))
	copied := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(copied, RunFile), text, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(copied, "long-history.toml"), []byte(longHistory), 0o600))
	again, err := Load(Args{File: filepath.Join(copied, RunFile)})
	require.NoError(t, err)
	require.Equal(t, l.Config, again.Config)
}

func TestRecipeFileRefuses(t *testing.T) {
	_, err := FindRecipe(writeRecipe(t, "first-of-two.toml", "recipe = \"fp8-smooth\"\n"))
	require.NoError(t, err)
	for name, c := range map[string]struct{ file, text, want string }{
		"no base":         {"a.toml", "[precision]\nhistory = 2\n", "recipe is missing"},
		"unknown base":    {"a.toml", "recipe = \"fp8_smooth\"\n", "a.toml:1: unknown recipe \"fp8_smooth\"; did you mean fp8-smooth?"},
		"base is a file":  {"a.toml", "recipe = \"b.toml\"\n", "a.toml:1: recipe = \"b.toml\" is a file; start from"},
		"base of a file":  {"a.toml", "recipe = \"first-of-two\"\n", "comes from a file too"},
		"other keys":      {"a.toml", "recipe = \"bf16\"\n[model]\nlayers = 2\n", "a.toml:3: model.layers is not part of a recipe"},
		"schedule":        {"a.toml", "recipe = \"bf16\"\n[[precision.schedule]]\nstep = 1\nrecipe = \"fp32\"\n", "precision.schedule is not part of a recipe"},
		"unknown key":     {"a.toml", "recipe = \"bf16\"\n[precision]\nhistroy = 2\n", "did you mean precision.history?"},
		"bad row":         {"a.toml", "recipe = \"bf16\"\n[[precision.rows]]\nscope = \"layers.*\"\nformat = \"fp4\"\n", "precision.rows[0].format"},
		"row of no layer": {"a.toml", "recipe = \"bf16\"\n[[precision.rows]]\nscope = \"blocks.*\"\nformat = \"e4m3\"\n", "matches none"},
		"syntax":          {"a.toml", "recipe = \n", "a.toml:1"},
		"taken name":      {"bf16.toml", "recipe = \"fp32\"\n", "Octet has a recipe of this name"},
		"name in use":     {"first-of-two.toml", "recipe = \"bf16\"\n", "another recipe of this name"},
		"name":            {"my recipe.toml", "recipe = \"bf16\"\n", "the file's name is the recipe's name"},
		"run file":        {"config.toml", "recipe = \"bf16\"\n", "not config.toml"},
	} {
		_, err := FindRecipe(writeRecipe(t, c.file, c.text))
		require.ErrorContains(t, err, c.want, name)
	}
	// Rows whose casts the layers cannot use, and rows without effect.
	for rows, want := range map[string]string{
		"granularity = \"48x48\"\n":                             "input of fprop: e4m3 current 48x48 shares scales between tokens",
		"format = \"e2m1\"\nscaling = \"delayed\"\n":            "e2m1 has no NaN",
		"scaling = \"delayed\"\ngranularity = \"1x32\"\n":       "scales of granularity 1x32 can only be current",
		"scale = \"e8m0\"\n":                                    "e8m0 is a format of block scales",
		"hadamard = 16\n":                                       "input of fprop has hadamard 16",
		"gemm = \"wgrad\"\noperand = \"grad\"\nhadamard = 16\n": "grad of wgrad has hadamard 16 and input none",
		"history = 4\n":                                         "precision.rows[0] has no effect under recipe fp8-current",
		"format = \"bf16\"\n[[precision.rows]]\nscope = \"layers.0.mlp.*\"\nformat = \"e5m2\"\n": "precision.rows[1] has no effect",
	} {
		_, err := FindRecipe(writeRecipe(t, "refused.toml", "recipe = \"fp8-current\"\n[[precision.rows]]\nscope = \"layers.*\"\n"+rows))
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "refused.toml: ")
	}
	_, err = FindRecipe(filepath.Join(t.TempDir(), "missing.toml"))
	require.ErrorContains(t, err, "the recipe file cannot be read")
	text := writeRecipe(t, "recipe.txt", "recipe = \"bf16\"\n")
	_, err = FindRecipe(text)
	require.EqualError(t, err, text+" is no recipe: the name of a recipe file ends in .toml")
	_, err = FindRecipe("fp8_smooth")
	require.ErrorContains(t, err, "did you mean fp8-smooth?")
}

func FuzzRecipeFile(f *testing.F) {
	f.Add(longHistory)
	f.Add("recipe = \"bf16\"\n")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseRecipe("fuzzed.toml", text)
		if err != nil {
			return
		}
		require.NoError(t, r.Validate())
		require.Equal(t, "fuzzed", r.Name)
		require.Equal(t, text, r.Source)
	})
}
