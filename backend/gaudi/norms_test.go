//go:build gaudi && cgo && linux

package gaudi

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/internal/trial"
	"octet/train"
)

// Norms of results, queries and keys train on the stand-in as on emu's model of the Gaudi. Layer
// scales and scales of the embedding need an op that gaudi lacks: it refuses them by name.
func TestNormsAgreeWithEmu(t *testing.T) {
	devices(t, "gaudi2", "1")
	c := small("fp8-delayed")
	c.Model.Norm, c.Model.FinalNorm, c.Model.QKNorm = "post", false, "learned"
	d := trial.Between(losses(t, c, "emu:gaudi2", steps), losses(t, c, "gaudi", steps))
	require.False(t, d.Exceeds(tolerance("fp8-delayed")), "apart %.2g", d)

	for key, edit := range map[string]func(m *train.Model){
		"layer_scale": func(m *train.Model) { m.LayerScale = new(0.1) },
		"embed_scale": func(m *train.Model) { m.EmbedScale = 16 },
	} {
		c := small("fp8-delayed")
		edit(&c.Model)
		dev, err := backend.Open("gaudi", backend.Options{Threads: 1})
		require.NoError(t, err)
		_, err = train.NewJob(c, dev.Spec())
		require.ErrorIs(t, err, backend.ErrUnsupported, key)
		require.ErrorContains(t, err, "model."+key)
		require.NoError(t, dev.Close())
	}
}
