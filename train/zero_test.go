package train

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/recipe"
)

// staged is c on two ranks, with a stage of ZeRO and without clipping, whose norm is summed in another
// order.
func staged(c Config, stage, accumulate int) Config {
	c.Optimizer.Clip, c.Train.MicroBatch, c.Train.Accumulate = 0, 4/2/accumulate, accumulate
	c.Train.Ranks, c.Train.ZeroStage = 2, stage
	return c
}

// A step of one micro-batch has the same bits at every stage of ZeRO, with all recipes: ranks add its
// gradients in the same order.
func TestStagesChangeNoBit(t *testing.T) {
	for _, name := range recipe.Names() {
		if r, err := recipe.Lookup(name); err != nil || r.Optimizer.Flat { // blocks of several rows are not shared
			continue
		}
		t.Run(name, func(t *testing.T) {
			c := small(t, name)
			base := 1 // codes of gradients travel only to shards
			if c.Precision.Reduce == "" && recipeReducesFP32(t, name) {
				base = 0
			}
			want := newTrainer(t, staged(c, base, 1), 2, false)
			list := steps(t, want, 3)
			state := saved(t, want)
			for _, stage := range []int{2, 3} {
				if stage == 2 && name != "fp8-smooth" && name != "fp8-lm" { // stage 3 scatters alike
					continue
				}
				got := newTrainer(t, staged(c, stage, 1), 2, false)
				for i, r := range steps(t, got, 3) {
					require.InEpsilon(t, list[i].GradNorm, r.GradNorm, normTolerance)
					r.GradNorm = list[i].GradNorm
					require.Equal(t, list[i], r, "stage %d", stage)
				}
				require.Equal(t, state, saved(t, got), "stage %d", stage)
			}
		})
	}
}

func recipeReducesFP32(t *testing.T, name string) bool {
	r, err := recipe.Lookup(name)
	require.NoError(t, err)
	return r.Reduce.FP32()
}

// With several micro-batches, stages 2 and 3 add the gradients of the ranks before those of the
// micro-batches, in FP32: the last bits differ from stage 1, and nothing between the two.
func TestStagesWithMicroBatches(t *testing.T) {
	configs := map[string]Config{"bf16": small(t, "bf16"), "fp8-smooth": small(t, "fp8-smooth"), "fp8-lm": small(t, "fp8-lm")}
	c := small(t, "fp8-smooth")
	c.Train.Recompute, c.Train.HealthEvery, c.Model.Tied = "block", 2, true
	configs["recompute, health, tied"] = c
	for name, c := range configs {
		t.Run(name, func(t *testing.T) {
			one := steps(t, newTrainer(t, staged(c, 1, 2), 2, false), 4)
			second, third := newTrainer(t, staged(c, 2, 2), 2, false), newTrainer(t, staged(c, 3, 2), 2, false)
			two := steps(t, second, 4)
			require.Equal(t, two, steps(t, third, 4))
			require.Equal(t, saved(t, second), saved(t, third))
			for i := range one {
				require.InEpsilon(t, one[i].Loss, two[i].Loss, 2e-3, i)
			}
			require.InEpsilon(t, one[0].GradNorm, two[0].GradNorm, 1e-3)
		})
	}
}

// A checkpoint of one stage resumes at every other, and the ranks go on with the same bits.
func TestStagesResumeInEachOther(t *testing.T) {
	c := small(t, "fp8-smooth")
	for _, from := range []int{0, 3} {
		first := newTrainer(t, staged(c, from, 1), 2, false)
		steps(t, first, 2)
		state, want := snapshot(t, first), steps(t, first, 2)
		for to := range 4 {
			next := newTrainer(t, staged(c, to, 1), 2, false)
			require.NoError(t, next.Restore(t.Context(), state))
			for i, r := range steps(t, next, 2) {
				require.Equal(t, want[i].Loss, r.Loss, "from stage %d to %d", from, to)
			}
		}
	}
}

// A rank of eight stores an eighth of the masters and moments at stage 1, of the gradients from stage 2
// on, and of the cast weights at stage 3. Head and embedding aside, which a tied model keeps, nothing of
// a matrix is whole.
func TestStagesShareMemory(t *testing.T) {
	lines := map[int][]Line{}
	temps := map[int]int64{}
	for stage := range 4 {
		c := small(t, "fp8-smooth")
		c.Model.Dim, c.Model.Heads, c.Model.KVHeads, c.Model.FFN, c.Model.Vocab = 128, 8, 8, 256, 256
		c = staged(c, stage, 1)
		c.Train.Ranks = 8
		j, err := NewJob(c, specOf(t, "emu"))
		require.NoError(t, err)
		lines[stage] = j.Lines()
		lowered, err := backend.Lower(j.Device, j.Programs()...)
		require.NoError(t, err)
		temps[stage] = backend.MakePlan(64, backend.PerOp, lowered...).Bytes
	}
	bytes := func(stage, line int) float64 { return float64(lines[stage][line].Layers + lines[stage][line].Rest) }
	const master, gradient, cast = 0, 1, 4
	for stage := 1; stage < 4; stage++ {
		require.InEpsilon(t, bytes(0, master)/8, bytes(stage, master), 0.05, stage) // vectors are whole
	}
	require.InEpsilon(t, bytes(0, gradient)*9/8, bytes(1, gradient), 0.05)
	require.InEpsilon(t, bytes(0, gradient)/8, bytes(2, gradient), 0.05)
	require.Equal(t, bytes(2, gradient), bytes(3, gradient))
	require.Equal(t, bytes(1, cast), bytes(2, cast))
	require.Less(t, bytes(3, cast), bytes(2, cast)/7)
	require.LessOrEqual(t, temps[3], temps[2]+int64(bytes(2, cast))/2, fmt.Sprint(temps))
}

// Ranks evaluate together where they gather weights, though not every rank has a batch in the last round.
func TestStagesEvaluateAlike(t *testing.T) {
	var want float64
	for _, stage := range []int{0, 1, 3} {
		c := staged(small(t, "fp8-smooth"), stage, 1)
		c.Train.Ranks = 5
		tr := newTrainer(t, c, 1, false)
		require.NotZero(t, (tr.device.sweep.Rows()+1)/2%5, "the last round has a batch for every rank")
		steps(t, tr, 1)
		loss, err := tr.Evaluate(t.Context())
		require.NoError(t, err)
		if stage == 0 {
			want = loss
		}
		require.Equal(t, want, loss, "stage %d", stage)
	}
}
