//go:build gaudi && cgo && linux

package gaudi

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	_ "octet/backend/emu"
	"octet/backend/world"
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

// trainer opens a device and returns a trainer at step 0.
func trainer(t *testing.T, c train.Config, on string) (*train.Trainer, backend.Backend) {
	t.Helper()
	return trainerOf(t, c, on, nil)
}

// trainerOf is trainer of a group's rank.
func trainerOf(t *testing.T, c train.Config, on string, g *world.Group) (*train.Trainer, backend.Backend) {
	t.Helper()
	d, err := backend.Open(on, backend.Options{Threads: 1, Group: g})
	require.NoError(t, err)
	j, err := train.NewJob(c, d.Spec())
	require.NoError(t, err)
	tr, err := train.NewTrainer(j, corpus(), d, g)
	require.NoError(t, err)
	require.NoError(t, tr.Init(t.Context()))
	return tr, d
}

func losses(t *testing.T, c train.Config, on string, steps int) (list []train.StepResult) {
	t.Helper()
	tr, d := trainer(t, c, on)
	list = take(t, tr, steps)
	require.NoError(t, d.Close())
	return list
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
			recipes := append([]string{"fp8-lm-adam"}, compared...)
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
		tr, d := trainer(t, c, "gaudi")
		scale := trial.InputScale(tr.Job)
		var got []train.StepResult
		for range steps {
			b := make([]byte, 4)
			require.NoError(t, d.Read(scale, b))
			right := math.Float32frombits(binary.LittleEndian.Uint32(b))
			binary.LittleEndian.PutUint32(b, math.Float32bits(right*0x1p-6))
			require.NoError(t, d.Write(scale, b))
			got = append(got, take(t, tr, 1)...)
		}
		require.NoError(t, d.Close())
		apart := trial.Between(losses(t, c, "emu:gaudi2", steps), got)
		t.Logf("%s: apart %.2g, at most %.2g", recipe, apart, most)
		require.True(t, apart.Exceeds(most), recipe)
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
			d, err := open("unit=2", backend.Options{})
			require.NoError(t, err)
			require.Equal(t, model+"+synapse1.24.0-standin+unit2", d.Spec().Arithmetic)
			require.NoError(t, d.Close())
		})
	}
}

// Muon with a momentum in BF16, on the stand-in and on emu's model of the Gaudi.
func TestMuonAgreesWithEmu(t *testing.T) {
	devices(t, "gaudi2", "1")
	c := small("bf16")
	c.Optimizer.Kind, c.Precision.M1 = "muon", "bf16"
	got := losses(t, c, "gaudi", steps)
	d, most := trial.Between(losses(t, c, "emu:gaudi2", steps), got), tolerance("bf16")
	t.Logf("apart %.2g, at most %.2g", d, most)
	require.False(t, d.Exceeds(most))
	c.Precision.M1, c.Precision.StateBlock, c.Precision.StateFlat = "int8", new(2048), new(true)
	_, err := train.NewJob(c, specOf(t, "gaudi2"))
	require.ErrorContains(t, err, "a momentum in int8")
}
