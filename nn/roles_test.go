package nn_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/nn"
	"octet/recipe"
)

func TestRoles(t *testing.T) {
	m := smallModel(t, "fp8-smooth", 4)
	linears := m.Linears()
	require.Equal(t, recipe.Layer{Scope: "layers.0.self_attn.q_proj"}, linears[0])
	require.Equal(t, recipe.Layer{Scope: "layers.1.mlp.down_proj", Hidden: true}, linears[13])
	require.Equal(t, recipe.Layer{Scope: "lm_head", Head: true}, linears[14])
	unknown, err := m.Config.Linears()
	require.NoError(t, err)
	require.Equal(t, linears, unknown, "the list does not depend on the recipe")

	count := map[string]int{}
	for p, part := range m.PartOf() {
		require.Contains(t, nn.Parts, part)
		require.NotEmpty(t, p.Name)
		count[part]++
	}
	require.Equal(t, map[string]int{"embedding": 1, "attention": 8, "mlp": 6, "norms": 5, "head": 1}, count)

	attention := m.AttentionOf()
	require.Equal(t, "layers.1.self_attn", attention("layers.1.self_attn"))
	require.Equal(t, "layers.1.self_attn", attention("layers.1.self_attn.o_proj"))
	require.Empty(t, attention("layers.1.mlp.up_proj"))
	require.Empty(t, attention("layers.1"))
	require.Empty(t, attention(""))

	smoothed := m.DependsOnSmoothing()
	for name, want := range map[string]bool{
		"layers.0.mlp.hidden.e4m3.scale":           true,
		"layers.0.mlp.hidden.channel_max_history":  true,
		"layers.1.mlp.down_proj.grad.e5m2.scale":   true,
		"layers.1.mlp.up_proj.grad.e5m2.scale":     false,
		"layers.1.mlp.input.e4m3.amax_history":     false,
		"layers.2.mlp.hidden.e4m3.scale":           false,
		"layers.1.self_attn.input.e4m3.scale_inv":  false,
		"layers.0.mlp.hidden_size.of.another.name": false,
	} {
		require.Equal(t, want, smoothed(name), name)
	}
}

// A model of Base.Linear has linear layers of no other kind.
func TestRolesOfAnotherModel(t *testing.T) {
	r, err := recipe.Lookup("fp8-smooth")
	require.NoError(t, err)
	m, err := newClassifier(r, backend.NewVars(), 32, 48, 16)
	require.NoError(t, err)
	require.Equal(t, []recipe.Layer{{Scope: "first"}, {Scope: "second"}}, m.Linears())
	require.Equal(t, map[*nn.Param]string{m.Params[0]: "linear", m.Params[1]: "linear"}, m.PartOf())
}
