//go:build cuda && cgo && linux

package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/train"
)

// Models with other norms than Llama's train on the stand-ins as on emu: FOG's norms of results,
// queries and keys and its scale of the embedding; a layer scale; and biases, wide heads and scaled
// frequencies.
func TestNormsAgreeWithEmu(t *testing.T) {
	standIns(t)
	for name, edit := range map[string]func(m *train.Model){
		"fog": func(m *train.Model) {
			m.Norm, m.FinalNorm, m.QKNorm, m.EmbedScale = "post", false, "frozen", 16
		},
		"layer scale": func(m *train.Model) { m.LayerScale, m.QKNorm = new(0.1), "learned" },
		"attention":   func(m *train.Model) { m.QKVBias, m.HeadDim, m.RopeScaling = true, 32, []float64{8, 1, 4, 16} },
	} {
		t.Run(name, func(t *testing.T) {
			c := compared("fp8-delayed")
			edit(&c.Model)
			agree(t, c, steps(t, c, "emu", 10), steps(t, c, "cuda", 10))
		})
	}
}

// Experts need ops that cuda lacks: it refuses them by the key.
func TestExpertsAreRefused(t *testing.T) {
	driver, device, err := backend.Find("cuda")
	require.NoError(t, err)
	s, err := driver.Spec(device)
	require.NoError(t, err)
	c := compared("bf16")
	c.Model.Experts = 4
	_, err = train.NewJob(c, s)
	require.ErrorIs(t, err, backend.ErrUnsupported)
	require.ErrorContains(t, err, "model.experts = 4 needs ops that route tokens")
}
