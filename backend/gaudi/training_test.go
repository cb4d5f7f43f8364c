//go:build gaudi && cgo && linux

package gaudi

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	_ "octet/backend/emu"
	"octet/data"
	"octet/train"
)

// small is a model whose every layer has a shape of its own.
func small(recipe string) train.Config {
	c := train.Default()
	c.Recipe = recipe
	c.Model.Layers, c.Model.Dim, c.Model.Heads, c.Model.KVHeads, c.Model.FFN = 2, 32, 2, 1, 48
	c.Data.Seq, c.Train.MicroBatch, c.Train.HealthEvery = 16, 4, 0
	return c
}

func corpus() *data.Corpus {
	return &data.Corpus{Train: data.Text(strings.Repeat("to be or not to be, that is the question: ", 120))}
}

// trainer opens devices and trains on them from the start.
func trainer(t *testing.T, c train.Config, on string) (*train.Trainer, []backend.Backend) {
	t.Helper()
	list, err := backend.Open(on, backend.Options{Threads: 1, Ranks: c.Train.Ranks})
	require.NoError(t, err)
	j, err := train.NewJob(c, list[0].Spec())
	require.NoError(t, err)
	tr, err := train.NewTrainer(j, corpus(), list)
	require.NoError(t, err)
	require.NoError(t, tr.Init(t.Context()))
	return tr, list
}

func losses(t *testing.T, c train.Config, on string, steps int) (list []train.StepResult) {
	t.Helper()
	tr, open := trainer(t, c, on)
	defer closeAll(t, open)
	return take(t, tr, steps)
}

func closeAll(t *testing.T, list []backend.Backend) {
	t.Helper()
	for _, d := range list {
		require.NoError(t, d.Close())
	}
}

func take(t *testing.T, tr *train.Trainer, steps int) (list []train.StepResult) {
	t.Helper()
	for range steps {
		r, err := tr.Next(t.Context())
		require.NoError(t, err)
		r.Elapsed = 0
		list = append(list, r)
	}
	return list
}

// A run on the stand-in and one on emu see the same batches. In bf16 they differ in
// orders of sums and in what attention rounds in between. In FP8 the device draws its
// own random bits for gradients in E5M2, whose steps are a quarter of the value: a
// single element may be off by one, the norm of all by a few parts in a hundred, and
// what the first step does to the weights hardly shows in the loss.
func TestTrainingAgreesWithEmu(t *testing.T) {
	for _, model := range []string{"gaudi2", "gaudi3"} {
		t.Run(model, func(t *testing.T) {
			devices(t, model, "1")
			for recipe, ofNorm := range map[string]float64{"bf16": 0x1p-10, "fp8-delayed": 0x1p-5, "fp8-smooth": 0x1p-5} {
				c := small(recipe)
				want, got := losses(t, c, "emu:"+model, 10), losses(t, c, "gaudi", 10)
				for i := range want {
					require.False(t, got[i].Skipped)
					require.InEpsilon(t, want[i].Loss, got[i].Loss, 0x1p-10, "%s, step %d", recipe, i+1)
					require.InEpsilon(t, want[i].GradNorm, got[i].GradNorm, ofNorm, "%s, step %d", recipe, i+1)
				}
				require.Less(t, got[len(got)-1].Loss, got[0].Loss-0.05, recipe)
			}
		})
	}
}

// Two ranks take the steps of one with both their batches, as far as the order of
// sums tells them apart; and a run repeats.
func TestTwoRanksAreOneWithTheirBatches(t *testing.T) {
	devices(t, "gaudi2", "2")
	c := small("bf16")
	c.Train.MicroBatch = 2
	c.Train.Ranks = 2
	two := losses(t, c, "gaudi", 4)
	require.Equal(t, two, losses(t, c, "gaudi", 4))
	c.Train.Ranks, c.Train.Accumulate = 1, 2
	one := losses(t, c, "emu", 4)
	for i := range one {
		require.InEpsilon(t, one[i].Loss, two[i].Loss, 0x1p-10, "step %d", i+1)
		require.InEpsilon(t, one[i].GradNorm, two[i].GradNorm, 0x1p-10, "step %d", i+1)
	}
}

// Ranks that share scales and round at random have the same weights, moments and
// scales after every step.
func TestRanksAgree(t *testing.T) {
	devices(t, "gaudi3", "2")
	c := small("fp8-smooth")
	c.Model.Layers, c.Train.MicroBatch, c.Train.Ranks = 1, 2, 2
	tr, list := trainer(t, c, "gaudi")
	defer closeAll(t, list)
	take(t, tr, 2)
	compared := map[backend.Class]int{}
	for x := range tr.Vars.All() {
		if x.Class != backend.Param && x.Class != backend.State {
			continue
		}
		a, b := make([]byte, x.Bytes()), make([]byte, x.Bytes())
		require.NoError(t, list[0].Read(x, a))
		require.NoError(t, list[1].Read(x, b))
		require.Equal(t, a, b, x.Name)
		compared[x.Class]++
	}
	require.Greater(t, compared[backend.Param], 5)
	require.Greater(t, compared[backend.State], 5)
}

// Ranks that share the optimizer's state take the steps of ranks that have all of
// it: in bf16 bit for bit but for the norm's last bits; in FP8, where devices draw
// bits of their own, as nearly as a run on emu. What no rank has a part of, the
// scales of shared tensors among it, stays the same on both.
func TestRanksShareTheOptimizer(t *testing.T) {
	devices(t, "gaudi2", "2")
	run := func(recipe string, stage int) ([]train.StepResult, *train.Trainer, []backend.Backend) {
		c := small(recipe)
		c.Model.Layers, c.Optimizer.Clip = 1, 0
		c.Train.MicroBatch, c.Train.Ranks, c.Train.ZeroStage = 2, 2, stage
		tr, list := trainer(t, c, "gaudi")
		return take(t, tr, 3), tr, list
	}
	for recipe, tolerance := range map[string]float64{"bf16": 0, "fp8-smooth": 0x1p-10} {
		want, whole, open := run(recipe, 0)
		closeAll(t, open)
		got, tr, list := run(recipe, 1)
		for i := range want {
			require.InEpsilon(t, want[i].GradNorm, got[i].GradNorm, max(32*tolerance, 0x1p-22))
			require.InDelta(t, want[i].Loss, got[i].Loss, tolerance*want[i].Loss)
		}
		compared := map[bool]int{} // whether each rank has all of it
		for x := range tr.Vars.All() {
			if x.Class != backend.Param && x.Class != backend.State {
				continue
			}
			a, b := make([]byte, x.Bytes()), make([]byte, x.Bytes())
			require.NoError(t, list[0].Read(x, a))
			require.NoError(t, list[1].Read(x, b))
			all := x.Elems() == whole.Vars.Lookup(x.Name).Elems()
			require.Equal(t, all, bytes.Equal(a, b), x.Name)
			compared[all]++
		}
		require.Greater(t, compared[true], 5, recipe)
		require.Equal(t, 3*9, compared[false], recipe)
		closeAll(t, list)
	}
}
