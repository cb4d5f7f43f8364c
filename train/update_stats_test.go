package train

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
)

// disturbed trains until all second moments shrink by 10^-4 after step 60, and returns the steps.
func disturbed(t *testing.T, clipRMS float64, disturb bool) []StepResult {
	t.Helper()
	c := small(t, "bf16")
	c.Optimizer.Betas[1], c.Optimizer.EpsForm, c.Optimizer.Clip = 0.99, "corrected", 0
	c.Optimizer.Stats, c.Optimizer.ClipRMS = true, clipRMS
	c.Train.Steps, c.Optimizer.LR, c.Optimizer.MinLR, c.Optimizer.Schedule = 100, 1e-2, 1e-2, "constant"
	tr := newTrainer(t, c, 2, false)
	var list []StepResult
	for step := range 70 {
		if disturb && step == 60 {
			for _, p := range tr.Model.Params {
				v := tr.optimizer.m2[p]
				x, err := tr.ranks[0].readMoment(v)
				require.NoError(t, err)
				for i := range x {
					x[i] *= 1e-4
				}
				require.NoError(t, tr.ranks[0].device.Write(v, fp8.AppendFloats(nil, x...)))
			}
		}
		res, err := tr.Next(context.Background())
		require.NoError(t, err)
		list = append(list, res)
	}
	return list
}

// After all second moments shrink, the next update is far too large. Its RMS tells so before the
// loss does, one step later. StableAdamW clips the update by that RMS; without the clip the loss
// jumps.
func TestStableAdamW(t *testing.T) {
	rise := func(clipRMS float64) float64 {
		whole, spiked := disturbed(t, clipRMS, false), disturbed(t, clipRMS, true)
		for i := 5; i < 60; i++ {
			require.Less(t, whole[i].Update.RMS, 4.5, "step %d", i+1)
			require.Less(t, whole[i].Update.Largest, 3., "step %d", i+1)
		}
		require.Equal(t, whole[60].Loss, spiked[60].Loss, "the update after this loss is the first one that differs")
		require.Greater(t, spiked[60].Update.RMS, 5.)
		require.Greater(t, spiked[60].Update.EmbeddingRMS, 4*whole[60].Update.EmbeddingRMS)
		require.Greater(t, spiked[60].Update.Largest, 30.)
		worst := 0.0
		for i, r := range spiked[61:] {
			worst = max(worst, r.Loss-whole[61+i].Loss)
		}
		t.Logf("clip_rms %v: RMS %.2f to %.2f, the loss rises from %.3f by at most %.3f", clipRMS, spiked[59].Update.RMS, spiked[60].Update.RMS, spiked[60].Loss, worst)
		return worst
	}
	plain, stable := rise(0), rise(1)
	require.Greater(t, plain, 1.)
	require.Less(t, 5*stable, plain)
}

// Shards give the statistics of the whole tensors, but for padding rows, which count as zeros: three
// ranks pad the rows of most tensors.
func TestUpdateStatsOfShards(t *testing.T) {
	for ranks, tolerance := range map[int]float64{2: 1e-6, 3: 0.05} {
		c := small(t, "fp8-smooth")
		c.Optimizer.Stats, c.Optimizer.Clip, c.Train.Ranks = true, 0, ranks
		whole, parts := steps(t, newTrainer(t, c, 2, false), 4), steps(t, newTrainer(t, shared(c, ranks), 2, false), 4)
		for i := range whole {
			require.InEpsilon(t, whole[i].Update.RMS, parts[i].Update.RMS, tolerance)
			require.InEpsilon(t, whole[i].Update.EmbeddingRMS, parts[i].Update.EmbeddingRMS, tolerance)
			require.InEpsilon(t, whole[i].Update.Largest, parts[i].Update.Largest, 1e-5)
		}
	}
}
