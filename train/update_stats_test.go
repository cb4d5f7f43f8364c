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

// zeroV trains with second moments of all matrices in format m2, and returns the update of step 10.
func zeroV(t *testing.T, m2 string, change func(*Config)) UpdateResult {
	t.Helper()
	c := small(t, "fp8-smooth")
	c.Precision.M2, c.Precision.StateScope, c.Precision.FloorV = m2, "all", new(false)
	c.Optimizer.Stats, c.Optimizer.Clip = true, 0
	change(&c)
	tr := newTrainer(t, c, 2, false)
	list := steps(t, tr, 9)
	require.Zero(t, list[0].Update.ZeroV, "all moments are 0")
	var want UpdateResult
	if c.Train.ZeroStage == 0 { // else a rank has a part of each moment
		want.ZeroV, want.ZeroVIn = countZeroV(t, tr)
	}
	got := steps(t, tr, 1)[0].Update
	t.Logf("%s: %+v", m2, got)
	if c.Train.ZeroStage == 0 {
		require.InDelta(t, want.ZeroV, got.ZeroV, 1e-8)
		require.Equal(t, want.ZeroVIn, got.ZeroVIn)
	}
	return got
}

// countZeroV returns UpdateResult.ZeroV and ZeroVIn of the next update, from the stored moments.
func countZeroV(t *testing.T, tr *team) (share float64, in string) {
	t.Helper()
	for _, p := range tr.Model.Params {
		if tr.optimizer.usesMuon(p) {
			continue
		}
		m, err := tr.ranks[0].readMoment(tr.optimizer.m1[p])
		require.NoError(t, err)
		v, err := tr.ranks[0].readMoment(tr.optimizer.m2[p])
		require.NoError(t, err)
		n := 0.
		for i := range v {
			if v[i] == 0 && m[i] != 0 {
				n++
			}
		}
		if n /= float64(len(v)); n > share {
			share, in = n, p.Name
		}
	}
	return share, in
}

// The second moments of the head span more binades than E4M3 with one scale has: those of rare bytes
// underflow, and the update explodes there. E5M2, blocks with an expansion, and a floor prevent it.
func TestZeroV(t *testing.T) {
	plain := zeroV(t, "e4m3", func(*Config) {})
	require.Greater(t, plain.ZeroV, 0.005)
	require.Equal(t, "lm_head.weight", plain.ZeroVIn)
	require.Greater(t, plain.Largest, 20.)
	require.Equal(t, "lm_head.weight", plain.LargestIn)

	flat := zeroV(t, "e4m3", func(c *Config) { c.Precision.StateBlock, c.Precision.StateFlat = new(128), new(true) })
	require.Less(t, 20*flat.ZeroV, plain.ZeroV)
	for name, r := range map[string]UpdateResult{
		"e5m2":     zeroV(t, "e5m2", func(*Config) {}),
		"fp32":     zeroV(t, "fp32", func(*Config) {}),
		"expanded": zeroV(t, "e4m3", func(c *Config) { c.Precision.StateBlock, c.Precision.StateExpand = new(128), new(true) }),
		"floor":    zeroV(t, "e4m3", func(c *Config) { c.Precision.FloorV = new(true) }),
	} {
		require.Zero(t, r.ZeroV, name)
		require.Empty(t, r.ZeroVIn, name)
		require.Less(t, r.Largest, 2., name)
		require.NotEmpty(t, r.LargestIn, name)
	}
	muon := zeroV(t, "e4m3", func(c *Config) { c.Optimizer.Kind = "muon" })
	require.Equal(t, "lm_head.weight", muon.ZeroVIn)
	require.Equal(t, "lm_head.weight", muon.LargestIn)
}

// The shares of the ranks' shards add up to that of the whole tensor. Three ranks pad the head's 256
// rows to 258, and padding does not count as underflowed.
func TestZeroVOfShards(t *testing.T) {
	for ranks, rows := range map[int]float64{2: 256, 3: 258} {
		whole := zeroV(t, "e4m3", func(c *Config) { c.Train.Ranks = ranks })
		parts := zeroV(t, "e4m3", func(c *Config) { *c = shared(*c, ranks) })
		one := zeroV(t, "e4m3", func(c *Config) { c.Train.Accumulate = ranks })
		require.Positive(t, whole.ZeroV)
		require.InDelta(t, one.ZeroV, whole.ZeroV, 0.001) // the gradients' sums round differently
		require.InEpsilon(t, whole.ZeroV*256/rows, parts.ZeroV, 1e-6)
		require.Equal(t, whole.ZeroVIn, parts.ZeroVIn)
		require.InEpsilon(t, whole.Largest, parts.Largest, 1e-6)
		require.Equal(t, whole.LargestIn, parts.LargestIn)
	}
}
