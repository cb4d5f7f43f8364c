package train

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/recipe"
)

// smoothConfigs returns configs with every form of Smooth-SwiGLU and every delayed scale.
func smoothConfigs(t *testing.T) map[string]Config {
	configs := map[string]Config{}
	for _, name := range []string{
		"fp8-smooth", "fp8-smooth-token", "fp8-paper",
		"smooth-product", "smooth-late-factors", "smooth-late-hidden", "smooth-late-weight", "smooth-late-token",
	} {
		configs[name] = small(t, name)
	}
	exact := true
	for _, form := range recipe.SmoothForms()[1:] {
		c := small(t, "fp8-smooth")
		c.Precision.Smooth, c.Precision.SmoothExact = form, &exact
		configs["exact "+form] = c
	}
	return configs
}

// Without spikes every form trains. Results do not depend on the number of threads or on
// recomputation, and a resumed run is bit-identical.
func TestEverySmoothFormTrains(t *testing.T) {
	for name, c := range smoothConfigs(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.Train.Steps, c.Train.Accumulate, c.Train.MicroBatch = 14, 2, 2
			tr := newTrainer(t, c, 1, false)
			first := steps(t, tr, 4)
			state := snapshot(t, tr)
			rest := steps(t, tr, 10)
			val, err := tr.Evaluate(t.Context())
			require.NoError(t, err)
			require.Less(t, val, first[0].Loss-0.5, "the loss falls")

			for _, mode := range []string{"attention", "block"} {
				again := c
				again.Train.Recompute = mode
				require.Equal(t, first, steps(t, newTrainer(t, again, 3, false), 4), mode)
			}
			resumed := newTrainer(t, c, 2, false)
			require.NoError(t, resumed.Restore(t.Context(), state))
			require.Equal(t, rest, steps(t, resumed, 10))
			same, err := resumed.Evaluate(t.Context())
			require.NoError(t, err)
			require.Equal(t, val, same)
		})
	}
}

// Each rank has its own smoothing scales, but parameters and state are equal on all ranks.
func TestSmoothRanksAgree(t *testing.T) {
	for _, name := range []string{"fp8-smooth", "fp8-smooth-token", "fp8-paper", "smooth-late-factors"} {
		c := small(t, name)
		c.Train.Ranks = 2
		tr := newTrainer(t, c, 2, false)
		steps(t, tr, 3)
		requireRanksAgree(t, tr)
	}
}

// In the first step delayed smoothing scales come from the calibration. After a cold start
// the history is empty, and they are 1.
func TestDelayedSmoothingIsCalibrated(t *testing.T) {
	for _, cold := range []bool{false, true} {
		c := small(t, "smooth-late-factors")
		c.Precision.ColdStart = &cold
		tr := newTrainer(t, c, 2, false)
		steps(t, tr, 1)
		h := tr.Model.ChannelHistory
		history := values(t, tr.ranks[0], h)
		for row, filled := range []bool{true, !cold, false} {
			for i, m := range history[row*h.Cols() : (row+1)*h.Cols()] {
				require.Equal(t, filled, m > 0, "cold start %v: row %d, channel %d", cold, row, i)
			}
		}
	}
}
