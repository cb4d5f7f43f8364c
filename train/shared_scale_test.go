package train

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// muOf returns μ by weight, as rank r holds it.
func muOf(t *testing.T, r *Trainer) []float64 { return values(t, r, r.Vars.Lookup("reduce.mu")) }

// μ starts at 1/N on all ranks. After a step that is not skipped it is halved where more than
// 1e-5 of a weight's sums are at the largest value, and grows by 2^(1/1000) elsewhere.
func TestMuFollowsSaturation(t *testing.T) {
	c := shared(small(t, "fp8-lm"), 4)
	c.Train.MicroBatch = 1
	tr := newTrainer(t, c, 1, false)
	mu := muOf(t, tr.Trainer)
	require.Len(t, mu, 2*7, "the weights of two layers")
	for _, x := range mu {
		require.Equal(t, .25, x)
	}
	halved, grown := 0, 0
	for step := range 6 {
		if step == 3 || step == 5 { // no room for sums, then room for all
			var raw []byte
			for i := range mu {
				mu[i] = 1 - .75*float64(step/5)
				raw = fp8.AppendFloats(raw, float32(mu[i]))
			}
			require.NoError(t, tr.write(tr.Vars.Lookup("reduce.mu"), raw))
		}
		steps(t, tr, 1)
		counts := values(t, tr.Trainer, tr.Vars.Lookup("reduce.at_max"))
		require.Equal(t, step == 3 || step == 4, slices.Max(counts) > 0, "step %d: counts are of one step", step+1)
		for i := range mu {
			// The weights of small have fewer than 1e5 elements: one sum is too many.
			if counts[i] > 0 {
				mu[i] /= 2
				halved++
			} else {
				mu[i] = float64(min(1, float32(mu[i])*float32(math.Exp2(1./1000))))
				grown++
			}
		}
		for _, r := range tr.ranks {
			require.Equal(t, mu, muOf(t, r), "step %d", step+1)
		}
	}
	require.Greater(t, halved, len(mu), "μ = 1 saturates")
	require.Greater(t, grown, len(mu), "μ = 1/N seldom does")

	require.NoError(t, tr.write(tr.Vars.Lookup("model.norm.weight"), fp8.AppendFloats(nil, float32(math.NaN()))))
	require.True(t, steps(t, tr, 1)[0].Skipped)
	require.Equal(t, mu, muOf(t, tr.Trainer), "a skipped step")
}

// A restored run repeats the bits, μ included. With another number of ranks it keeps μ, which then
// follows what saturates. A run whose checkpoint has no μ starts at 1/N.
func TestMuIsRestored(t *testing.T) {
	c := small(t, "fp8-lm")
	c.Train.MicroBatch = 1
	first := newTrainer(t, shared(c, 4), 1, false)
	steps(t, first, 2)
	saving := snapshot(t, first)
	mu := muOf(t, first.Trainer)
	want := steps(t, first, 3)

	again := newTrainer(t, shared(c, 4), 1, false)
	require.NoError(t, again.Restore(t.Context(), saving))
	require.Equal(t, mu, muOf(t, again.Trainer))
	require.Equal(t, want, steps(t, again, 3))
	require.Equal(t, saved(t, first), saved(t, again))

	fewer := newTrainer(t, shared(c, 2), 1, false)
	require.NoError(t, fewer.Restore(t.Context(), saving))
	require.Equal(t, mu, muOf(t, fewer.Trainer))
	steps(t, fewer, 1)

	c.Precision.ReduceScale = "rms"
	fixed := newTrainer(t, shared(c, 4), 1, false)
	require.Nil(t, fixed.Model.Mu)
	require.NoError(t, fixed.Restore(t.Context(), saving), "it ignores μ")
	saving = snapshot(t, fixed)
	c.Precision.ReduceScale = ""
	restarted := newTrainer(t, shared(c, 4), 1, false)
	require.NoError(t, restarted.Restore(t.Context(), saving))
	require.Equal(t, .25, muOf(t, restarted.Trainer)[0])
}

// One rank exchanges nothing: it declares no μ, and trains as with gradients in FP32.
func TestOneRankHasNoWire(t *testing.T) {
	c := small(t, "fp8-lm")
	one := newTrainer(t, c, 1, false)
	require.Nil(t, one.Model.Mu)
	for _, p := range one.Programs() {
		for _, n := range p.Nodes() {
			require.NotContains(t, []string{"*backend.SumParts", "*backend.StepMu"}, fmt.Sprintf("%T", n.Op))
		}
	}
	c.Precision.Reduce, c.Precision.ReduceScale, c.Precision.ReduceSum = "fp32", "rank", "fp32"
	require.Equal(t, steps(t, newTrainer(t, c, 1, false), 3), steps(t, one, 3))
}

// A rank of llama2-7b on 8 ranks sends 64 % less than with gradients in FP32 and weights in BF16, and
// 47 % less than with both in BF16. The rest is mostly the embedding and the head in FP32, a larger
// share of smaller models. go test -v -run TestBytesOfTheWire ./train
func TestBytesOfTheWire(t *testing.T) {
	for preset, want := range map[string][2]float64{"tiny": {.60, .43}, "small": {.51, .346}, "llama2-7b": {.641, .471}} {
		sent := func(recipe, reduce string) float64 {
			c, err := Preset(preset)
			require.NoError(t, err)
			c.Recipe, c.Precision.Reduce = recipe, reduce
			j, err := NewJob(shared(c, 8), backend.Spec{})
			require.NoError(t, err)
			sum := int64(0)
			for _, line := range j.Traffic() {
				sum += line.Bytes
			}
			return float64(sum)
		}
		wide, half, narrow := sent("bf16", ""), sent("bf16", "bf16"), sent("fp8-lm", "")
		t.Logf("%-9s a rank of 8 sends %.4g MB in a step, %.4g MB with BF16 gradients, %.4g MB with fp8-lm: -%.1f %%, -%.1f %%",
			preset, wide/1e6, half/1e6, narrow/1e6, 100-100*narrow/wide, 100-100*narrow/half)
		require.InDelta(t, want[0], 1-narrow/wide, 5e-3)
		require.InDelta(t, want[1], 1-narrow/half, 5e-3)
	}
}
