//go:build gaudi && cgo && linux

package gaudi

import (
	"bytes"
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	_ "octet/backend/emu"
	"octet/checkpoint"
	"octet/data"
	"octet/internal/trial"
	"octet/train"
)

// small returns a config of a small model in which every layer has a shape of its own.
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

// trainer opens devices and returns a trainer at step 0.
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

// steps is the number of compared steps; tokens are those of one step.
const steps, tokens = 50, 64

// tolerance returns the difference that rounding causes between two runs that round
// differently, stochastically or because sums in another order fall on the other side of
// a tie.
//
// The relative error of rounding to a format is at most u: half a step, over the smallest
// value with that step. u is 2^-9 in BF16, 2^-4 in E4M3, which the forward pass reads,
// and 2^-3 in E5M2, which the backward pass reads. The root mean square is √3 times
// smaller, which leaves a margin for the other run's error. With stochastic rounding to
// E5M2 the error is √(1/6) of a step, or u/1.4, on average.
//
// A value passes 13 GEMMs: six in each of the two layers (q, k and v; scores; attention;
// o; up and gate; down), and the head. Independent errors add up to √13 u. A loss and a
// gradient are means over tokens, which leaves √(13/tokens) u of the gradient's norm and,
// since logits are of the order of 1, as many nats of the loss. The mean over the steps
// is √steps times more accurate.
func tolerance(recipe string) trial.Difference {
	forward, backward := 0x1p-4, 0x1p-3
	if recipe == "bf16" {
		forward, backward = 0x1p-9, 0x1p-9
	}
	mean := math.Sqrt(13. / tokens)
	return trial.Tolerance(forward*mean, backward*mean, steps)
}

// compared are training recipes that a Gaudi supports unchanged, except for formats.
var compared = []string{"bf16", "fp8-delayed", "fp8-w3-bf16", "fp8-smooth", "fp8-smooth-token"}

// Runs on the stand-in, on emu's model of the Gaudi, and on plain emu see the same
// batches. The stand-in and emu's model share their GEMM bits, because both are the
// project's own, so their agreement proves little. Plain emu's E4M3 ends at 448 and its
// sums are exact.
func TestTrainingAgreesWithEmu(t *testing.T) {
	for _, m := range modes {
		t.Run(m.model+m.options, func(t *testing.T) {
			m.begin(t, "1")
			recipes := compared
			if m.options != "" { // options affect only GEMMs and casts
				recipes = []string{"fp8-smooth"}
			}
			for _, recipe := range recipes {
				c, most := small(recipe), tolerance(recipe)
				require.Equal(t, tokens, c.Data.Seq*c.Train.MicroBatch)
				got := losses(t, c, "gaudi:"+m.options, steps)
				for _, other := range []string{"emu:" + m.model, "emu"} {
					d := trial.Between(losses(t, c, other, steps), got)
					t.Logf("%s, %s: apart %.2g, at most %.2g", recipe, other, d, most)
					require.False(t, d.Exceeds(most), "%s: from %s by %.3g, at most %.3g", recipe, other, d, most)
				}
				for _, r := range got {
					require.False(t, r.Skipped)
				}
				require.Less(t, got[steps-1].Loss, got[0].Loss-1.5, recipe)
			}
		})
	}
}

// A scale that is wrong by 2^-6 in the cast, but not in the GEMM that undoes it, is
// detected in every recipe that has one.
func TestTrainingWithAWrongScaleDisagrees(t *testing.T) {
	devices(t, "gaudi2", "1")
	for _, recipe := range compared[1:] {
		c, most := small(recipe), tolerance(recipe)
		tr, list := trainer(t, c, "gaudi")
		scale := trial.InputScale(tr.Job)
		var got []train.StepResult
		for range steps {
			b := make([]byte, 4)
			require.NoError(t, list[0].Read(scale, b))
			right := math.Float32frombits(binary.LittleEndian.Uint32(b))
			binary.LittleEndian.PutUint32(b, math.Float32bits(right*0x1p-6))
			require.NoError(t, list[0].Write(scale, b))
			got = append(got, take(t, tr, 1)...)
		}
		closeAll(t, list)
		d := trial.Between(losses(t, c, "emu:gaudi2", steps), got)
		t.Logf("%s: apart %.2g, at most %.2g", recipe, d, most)
		require.True(t, d.Exceeds(most), recipe)
	}
}

// The number of blocks per unit changes no bit on the stand-in, which computes in order.
func TestUnitsComputeTheSame(t *testing.T) {
	for _, model := range []string{"gaudi2", "gaudi3"} {
		t.Run(model, func(t *testing.T) {
			devices(t, model, "1")
			for _, recipe := range []string{"bf16", "te-delayed"} { // reproducible ones
				c := small(recipe)
				c.Model.Layers = 5
				want := losses(t, c, "gaudi", 4)
				for _, unit := range []string{"gaudi:unit=2", "gaudi:unit=5"} {
					require.Equal(t, want, losses(t, c, unit, 4), "%s on %s", recipe, unit)
				}
			}
			list, err := open("unit=2", backend.Options{})
			require.NoError(t, err)
			require.Equal(t, model+"+synapse1.24.0-standin+unit2", list[0].Spec().Arithmetic)
			closeAll(t, list)
		})
	}
}

// Two ranks take the steps of one rank with both batches. Both sum two gradients in FP32,
// and a + b = b + a. As the stand-in computes in order, losses, norms, gradients,
// weights, moments and scales are equal to the bit where nothing is rounded
// stochastically.
func TestTwoRanksEqualOneWithBothBatches(t *testing.T) {
	devices(t, "gaudi2", "2")
	for _, recipe := range []string{"bf16", "fp8-delayed"} {
		c := small(recipe)
		c.Model.Layers, c.Train.MicroBatch = 1, 2
		if recipe == "fp8-delayed" { // its gradients are rounded stochastically
			c.Precision.Rows = []train.PrecisionRow{{Scope: "layers.*", Operand: "grad", Rounding: "nearest"}}
		}
		// A rank's first scales come only from its first micro-batch, so both runs start
		// from the scales after one step.
		start, list := trainer(t, c, "gaudi")
		take(t, start, 1)
		contents, err := start.Contents("test", "gaudi")
		require.NoError(t, err)
		closeAll(t, list)
		path, err := checkpoint.Save(t.TempDir(), 1, contents)
		require.NoError(t, err)
		state, err := checkpoint.Open(path)
		require.NoError(t, err)

		// The final variables of each rank, by name.
		run := func(ranks, accumulate int) (results []train.StepResult, held []map[string][]byte) {
			c.Train.Ranks, c.Train.Accumulate = ranks, accumulate
			tr, list := trainer(t, c, "gaudi")
			defer closeAll(t, list)
			require.NoError(t, tr.Restore(t.Context(), state))
			results = take(t, tr, 3)
			gradients := map[*backend.Tensor]bool{}
			for _, p := range tr.Model.Params {
				gradients[p.Grad] = true
			}
			for _, d := range list {
				of := map[string][]byte{}
				for x := range tr.Vars.All() {
					if x.Class == backend.Param || x.Class == backend.State || gradients[x] {
						of[x.Name] = make([]byte, x.Bytes())
						require.NoError(t, d.Read(x, of[x.Name]))
					}
				}
				held = append(held, of)
			}
			return results, held
		}
		want, one := run(1, 2)
		got, two := run(2, 1)
		require.NoError(t, state.Close())
		require.Equal(t, want, got, recipe)
		require.Greater(t, len(one[0]), 4*12, "a weight, a gradient and two moments of each parameter")
		for rank, of := range two {
			require.Len(t, of, len(one[0]))
			for name, x := range one[0] {
				require.True(t, bytes.Equal(x, of[name]), "%s: %s of rank %d", recipe, name, rank)
			}
		}
	}
}

// Ranks that share scales and round stochastically have the same weights, moments and
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

// Three ranks do not divide the rows of the matrices.
func TestShardsWithPadding(t *testing.T) {
	devices(t, "gaudi2", "3")
	var all [2][]train.StepResult
	for stage := range all {
		c := small("bf16")
		c.Model.Layers, c.Optimizer.Clip = 1, 0
		c.Train.MicroBatch, c.Train.Ranks, c.Train.ZeroStage = 2, 3, stage
		tr, list := trainer(t, c, "gaudi")
		all[stage] = take(t, tr, 3)
		closeAll(t, list)
	}
	for i := range all[0] {
		require.InEpsilon(t, all[0][i].GradNorm, all[1][i].GradNorm, 0x1p-22)
		require.Equal(t, all[0][i].Loss, all[1][i].Loss)
	}
}

// Ranks with a sharded optimizer take the steps of ranks with full optimizer state: in
// bf16 bit for bit except for the norm's last bits; in FP8, where devices draw their own
// random bits, within the tolerance of a run on emu. Unsharded state, including the
// scales of shared tensors, stays equal on both.
func TestShardedOptimizer(t *testing.T) {
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
		compared := map[bool]int{} // by whether each rank has all of it
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
