package train

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/checkpoint"
	"octet/nn"
)

var errMine = func() error {
	swiGLU, err := nn.LookupActivation(nn.SwiGLU)
	if err != nil {
		return err
	}
	return nn.RegisterActivation("mine", swiGLU)
}()

// A registered activation with SwiGLU's ops trains to SwiGLU's bits. Its checkpoints name
// it, and only it resumes from them.
func TestRegisteredActivation(t *testing.T) {
	require.NoError(t, errMine)
	c := small(t, "fp8-smooth")
	c.Train.HealthEvery, c.Model.Activation = 1, "swiglu"
	want := newTrainer(t, c, 2, false)
	c.Model.Activation, c.Train.Recompute = "mine", "block"
	got := newTrainer(t, c, 2, false)
	require.Equal(t, "none", got.Config.Precision.Smooth)
	for i, r := range steps(t, got, 3) {
		s, err := want.Next(t.Context())
		require.NoError(t, err)
		require.Equal(t, s.Loss, r.Loss, i)
		require.Equal(t, s.GradNorm, r.GradNorm, i)
	}
	h, err := got.Health(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, h.Casts)
	require.Empty(t, h.SwiGLU)

	saved := snapshot(t, got)
	require.Equal(t, "mine", saved.Config.HiddenAct)
	require.NoError(t, newTrainer(t, c, 1, false).Restore(t.Context(), saved))
	c.Model.Activation = "swiglu"
	require.ErrorContains(t, newTrainer(t, c, 1, false).Restore(t.Context(), saved), "has model.activation mine, not swiglu")

	model, err := FromHF(saved.Config)
	require.NoError(t, err)
	require.Equal(t, nn.Activation("mine"), model.Activation)
	text, err := json.Marshal(saved.Config)
	require.NoError(t, err)
	require.Contains(t, string(text), `"model_type":"octet-gated"`)
}

// A model's activation must be known, with the gate of its weights.
func TestActivationOfHF(t *testing.T) {
	for want, edit := range map[string]func(*checkpoint.Config){
		`hidden_act: unknown activation "tanh"`:                              func(c *checkpoint.Config) { c.HiddenAct = "tanh" },
		`hidden_act = "gelu" is gated: true in these weights, false in this`: func(c *checkpoint.Config) { c.HiddenAct = "gelu" },
		`hidden_act = "mine" is gated: false in these weights, true in this`: func(c *checkpoint.Config) { c.HiddenAct, c.Gated = "mine", false },
	} {
		c := HFConfig(Default())
		edit(&c)
		_, err := FromHF(c)
		require.ErrorContains(t, err, want)
	}
}
