package train

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/recipe"
)

// scheduled returns the config with changes of recipe.
func scheduled(c Config, changes ...RecipeChange) Config {
	c.Precision.Schedule = changes
	return c
}

// Settings that differ from the first recipe's choices apply under every recipe;
// each recipe decides all other settings.
func TestPhases(t *testing.T) {
	c := scheduled(small(t, "bf16"), RecipeChange{100, "fp8-smooth"}, RecipeChange{150, "fp8-delayed"}, RecipeChange{200, "bf16"})
	c.Precision.M1 = "e5m2"
	c.Precision.Rows = []PrecisionRow{{Scope: "layers.0.self_attn.*", Format: "bf16"}}
	phases, err := c.Phases()
	require.NoError(t, err)
	type choice struct {
		from                               int
		recipe, activation, master, m1, m2 string
		smooth                             string
	}
	var got []choice
	for _, p := range phases {
		q := p.Config.Precision
		got = append(got, choice{p.From, p.Config.Recipe, p.Config.Model.Activation, q.Master, q.M1, q.M2, q.Smooth})
		require.Equal(t, c.Precision.Rows, q.Rows)
		require.Empty(t, q.Schedule)
	}
	require.Equal(t, []choice{
		{0, "bf16", "swiglu", "fp32", "e5m2", "fp32", "none"},
		{100, "fp8-smooth", "smooth-swiglu", "fp16", "e5m2", "e5m2", "balanced"},
		{150, "fp8-delayed", "swiglu", "fp32", "e5m2", "fp32", "none"},
		{200, "bf16", "swiglu", "fp32", "e5m2", "fp32", "none"},
	}, got)

	// A run's config.toml holds the resolved config, which has the same phases.
	require.NoError(t, c.Resolve())
	require.NotEmpty(t, c.Precision.Schedule)
	again, err := c.Phases()
	require.NoError(t, err)
	require.Equal(t, phases, again)

	for done, want := range map[int]int{-1: 0, 0: 0, 99: 0, 100: 1, 149: 1, 150: 2, 200: 3, 1000: 3} {
		require.Equal(t, want, PhaseAt(phases, done), done)
	}
}

// Settings of Smooth-SwiGLU are ignored in phases whose w3 reads BF16, and apply in
// the others.
func TestSmoothSettingsOfASchedule(t *testing.T) {
	c := scheduled(small(t, "bf16"), RecipeChange{100, "fp8-smooth"})
	c.Precision.Smooth = "linear"
	require.NoError(t, c.Resolve())
	phases, err := c.Phases()
	require.NoError(t, err)
	require.Equal(t, "swiglu", phases[0].Config.Model.Activation)
	require.Equal(t, "smooth-swiglu", phases[1].Config.Model.Activation)
	r, err := phases[1].Config.ResolvedRecipe()
	require.NoError(t, err)
	require.Equal(t, recipe.Linear, r.Smooth.Form)
}

// NewJob reports an invalid later phase before the run starts.
func TestPhasesAreChecked(t *testing.T) {
	c := scheduled(small(t, "bf16"), RecipeChange{100, "fp32"})
	c.Precision.Rows = []PrecisionRow{{Scope: "layers.*", Operand: "weight", Format: "bf16"}}
	_, err := NewJob(c, specOf(t, "emu"))
	require.ErrorContains(t, err, "recipe fp32: layers.0.self_attn.q_proj: fprop multiplies input in fp32 by weight in bf16")

	c = scheduled(small(t, "fp8-delayed"), RecipeChange{100, "mxfp8"})
	c.Model.Activation = "smooth-swiglu"
	require.ErrorContains(t, c.Resolve(), "under recipe mxfp8, from step 100 on: layers.0.mlp.down_proj: input in e4m3 current 1x32 e8m0: smooth-swiglu needs one scale")
}

// LargestJob returns the phase that needs the most memory.
func TestLargestJob(t *testing.T) {
	spec := specOf(t, "emu")
	var snapshots []int64
	total := func(c Config) (string, int64) {
		j, programs, m, err := LargestJob(c, spec)
		require.NoError(t, err)
		require.Len(t, programs, len(j.Programs()))
		snapshots = append(snapshots, m.Snapshot)
		return j.Recipe.Name, m.Total()
	}
	_, fp32 := total(small(t, "fp32"))
	_, bf16 := total(small(t, "bf16"))
	require.Greater(t, fp32, bf16)
	for _, c := range []Config{
		scheduled(small(t, "bf16"), RecipeChange{5, "fp32"}),
		scheduled(small(t, "fp32"), RecipeChange{5, "bf16"}),
	} {
		name, n := total(c)
		require.Equal(t, "fp32", name)
		require.Equal(t, fp32, n)
	}
	require.NotZero(t, snapshots[0])
	require.Equal(t, []int64{snapshots[0], snapshots[0]}, snapshots[2:], "the snapshot is fp32's in either order")
}
