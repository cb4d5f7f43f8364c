package sweep

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/train"
)

// The bytes of a variant are those of its recipe, whatever the ranks of its runs.
func TestBytes(t *testing.T) {
	s := &Sweep{places: []string{"emu"}}
	of := func(recipe string, change func(*train.Config)) Bytes {
		c := train.Default()
		c.Recipe = recipe
		c.Model.Layers, c.Model.Dim, c.Model.Heads, c.Model.KVHeads, c.Model.FFN = 1, 64, 2, 1, 96
		if change != nil {
			change(&c)
		}
		return s.Bytes(&Variant{Config: c})
	}
	base := of("bf16", nil)
	require.EqualValues(t, 16, base.Parameter)
	require.InDelta(t, 2, base.Activation, 0.05)
	require.InDelta(t, 6*7./8, base.Sent, 0.05)
	require.Equal(t, base, of("bf16", func(c *train.Config) { c.Train.Ranks, c.Train.ZeroStage = 2, 1 }))

	lm := of("fp8-lm", nil)
	require.Less(t, lm.Sent, 0.7*base.Sent)
	require.Less(t, lm.Parameter, base.Parameter)
	require.Less(t, of("coat", nil).Activation, of("fp8-current", nil).Activation)

	flat := of("torchao-adam", nil) // its blocks do not end where ranks do
	require.True(t, flat.Sent != flat.Sent, "%v", flat)
	require.Less(t, flat.Parameter, base.Parameter)
}
