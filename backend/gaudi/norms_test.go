//go:build gaudi && cgo && linux

package gaudi

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/internal/trial"
	"octet/train"
)

// Norms of results, queries and keys, layer scales, scales of the embedding, biases, wide heads and
// scaled frequencies train on the stand-in as on emu's model of the Gaudi.
func TestNormsAgreeWithEmu(t *testing.T) {
	devices(t, "gaudi2", "1")
	for key, edit := range map[string]func(m *train.Model){
		"norms":       func(m *train.Model) { m.Norm, m.FinalNorm, m.QKNorm, m.EmbedScale = "post", false, "learned", 16 },
		"layer_scale": func(m *train.Model) { m.LayerScale = new(0.1) },
		"attention":   func(m *train.Model) { m.QKVBias, m.HeadDim, m.RopeScaling = true, 32, []float64{8, 1, 4, 16} },
	} {
		c := small("fp8-delayed")
		edit(&c.Model)
		d := trial.Between(losses(t, c, "emu:gaudi2", steps), losses(t, c, "gaudi", steps))
		require.False(t, d.Exceeds(tolerance("fp8-delayed")), "%s apart %.2g", key, d)
	}
}

// gaudi lacks the ops of mixtures of experts, and names the key.
func TestExpertsAreRefused(t *testing.T) {
	devices(t, "gaudi2", "1")
	c := small("fp8-delayed")
	c.Model.Experts = 4
	dev, err := backend.Open("gaudi", backend.Options{Threads: 1})
	require.NoError(t, err)
	_, err = train.NewJob(c, dev.Spec())
	require.ErrorIs(t, err, backend.ErrUnsupported)
	require.ErrorContains(t, err, "model.experts")
	require.NoError(t, dev.Close())
}
