package train

import (
	"bytes"
	"context"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	_ "octet/backend/emu"
	"octet/checkpoint"
	"octet/data"
	"octet/fp8"
)

// syntheticText returns text that a small model can learn: words of a small vocabulary,
// each depending on the previous one.
func syntheticText(n int) []byte {
	words := strings.Fields("func return if err nil for range len string byte int error := == != { } ( )")
	rng := rand.New(rand.NewPCG(3, 5))
	var b []byte
	at := 0
	for len(b) < n {
		b = append(append(b, words[at]...), ' ')
		at = (at*7 + 1 + rng.IntN(3)) % len(words)
	}
	return b[:n]
}

func testCorpus() *data.Corpus {
	text := syntheticText(40_000)
	return &data.Corpus{Train: data.Text(text[:36_000]), Val: data.Text(text[36_000:])}
}

// newTrainer starts a run of a small model on emu.
func newTrainer(t *testing.T, c Config, threads int, localAmax bool) *team {
	t.Helper()
	return newTrainerFor(t, c, specOf(t, "emu"), threads, localAmax)
}

func TestShortText(t *testing.T) {
	j, err := NewJob(small(t, "bf16"), specOf(t, "emu"))
	require.NoError(t, err)
	d, err := backend.Open("emu", backend.Options{})
	require.NoError(t, err)
	defer d.Close()
	_, err = NewTrainer(j, &data.Corpus{Train: data.Text(make([]byte, 32))}, d, nil)
	require.ErrorContains(t, err, "32 tokens are too few for training")
}

// newTrainerFor runs programs for another device's spec on emu.
func newTrainerFor(t *testing.T, c Config, spec backend.Spec, threads int, localAmax bool) *team {
	t.Helper()
	tr := newTeam(t, func() (*Job, error) { return newJob(c, spec, localAmax) }, threads, nil)
	require.NoError(t, tr.Init(context.Background()))
	return tr
}

// Init restarts a trainer that has already trained.
func TestInitRestarts(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		c := small(t, "fp8-smooth")
		c.Train.Ranks, c.Train.ZeroStage = ranks, ranks-1
		tr := newTrainer(t, c, 1, false)
		begun := persistent(t, tr)
		want := steps(t, tr, 3)
		require.NoError(t, tr.Init(t.Context()))
		for name, raw := range persistent(t, tr) {
			require.True(t, bytes.Equal(begun[name], raw), name) // not require.Equal, which would print all bytes
		}
		require.Equal(t, want, steps(t, tr, 3))
	}
}

// Without weights, steps, evaluations and checkpoints return errNoWeights.
func TestOperationsNeedWeights(t *testing.T) {
	for _, name := range []string{"bf16", "fp8-smooth"} {
		tr := newTeam(t, func() (*Job, error) { return NewJob(small(t, name), specOf(t, "emu")) }, 1, nil)
		for range 2 {
			_, err := tr.Next(t.Context())
			require.ErrorIs(t, err, errNoWeights)
			_, err = tr.NextAhead(t.Context())
			require.ErrorIs(t, err, errNoWeights)
			_, err = tr.Evaluate(t.Context())
			require.ErrorIs(t, err, errNoWeights)
			_, err = tr.Contents("test", "emu")
			require.ErrorIs(t, err, errNoWeights)
		}
		require.NoError(t, tr.Init(t.Context()))
		_, err := tr.Evaluate(t.Context())
		require.NoError(t, err)
		steps(t, tr, 1)
	}
}

// A Restore that fails halfway leaves the weights unset.
func TestFailedRestoreUnsetsWeights(t *testing.T) {
	c := small(t, "bf16")
	tr := newTrainer(t, c, 1, false)
	want := steps(t, tr, 1)
	whole := snapshot(t, tr)
	want = append(want, steps(t, tr, 1)...)
	contents, err := tr.Contents("test", "emu")
	require.NoError(t, err)
	contents.Optimizer = contents.Optimizer[:1]
	path, err := checkpoint.Save(t.TempDir(), tr.StepsDone(), contents)
	require.NoError(t, err)
	lacking, err := checkpoint.Open(path)
	require.NoError(t, err)
	require.ErrorContains(t, tr.Restore(t.Context(), lacking), "there is no tensor")
	require.NoError(t, lacking.Close())
	_, err = tr.Next(t.Context())
	require.ErrorIs(t, err, errNoWeights)
	require.NoError(t, tr.Restore(t.Context(), whole))
	require.Equal(t, want[1:], steps(t, tr, 1))
}

// Buffers are allocated in the first steps; later steps allocate nothing.
func TestStepsDoNotAllocate(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"fp8-smooth":   func(*Config) {},
		"muon":         func(c *Config) { c.Optimizer.Kind = "muon" },
		"clip_rms":     func(c *Config) { c.Optimizer.Stats, c.Optimizer.ClipRMS = true, 1 },
		"direction_lr": func(c *Config) { c.Recipe, c.Optimizer.DirectionLR = "int8-unified", true },
		"coat":         func(c *Config) { c.Recipe = "coat" },
		"grad_accum":   func(c *Config) { c.Precision.GradAccum, c.Train.Accumulate = "e4m3", 2 },
	} {
		c := small(t, "fp8-smooth")
		change(&c)
		tr := newTrainer(t, c, 2, false)
		steps(t, tr, 2)
		require.Zero(t, testing.AllocsPerRun(20, func() { _, _ = tr.Trainer.Next(context.Background()) }), name)
	}
}

func steps(t *testing.T, tr *team, n int) []StepResult {
	t.Helper()
	list := make([]StepResult, n)
	for i := range list {
		res, err := tr.Next(context.Background())
		require.NoError(t, err)
		res.Elapsed = 0
		list[i] = res
	}
	return list
}

// values returns a tensor of rank r as float64; scales are not applied.
func values(t *testing.T, r *Trainer, x *backend.Tensor) []float64 {
	t.Helper()
	return decodeAll(x.DType, memory(t, r, x))
}

// memory returns the bytes of a tensor on rank r.
func memory(t *testing.T, r *Trainer, x *backend.Tensor) []byte {
	t.Helper()
	raw := make([]byte, x.Bytes())
	require.NoError(t, r.device.Read(r.Vars.Lookup(x.Name), raw))
	return raw
}

// distance returns ‖a−b‖/‖b‖.
func distance(a, b []float64) float64 {
	num, den := 0.0, 0.0
	for i := range a {
		num += (a[i] - b[i]) * (a[i] - b[i])
		den += b[i] * b[i]
	}
	return math.Sqrt(num / den)
}

func TestEveryRecipeLearns(t *testing.T) {
	for _, name := range []string{"fp32", "bf16", "fp8-current", "fp8-delayed", "fp8-w3-bf16", "fp8-smooth", "fp8-head"} {
		t.Run(name, func(t *testing.T) {
			c := small(t, name)
			c.Train.Steps = 40
			tr := newTrainer(t, c, 2, false)
			list := steps(t, tr, 40)
			require.InDelta(t, math.Log(256), list[0].Loss, 0.2, "an untrained model predicts the uniform distribution")
			val, err := tr.Evaluate(context.Background())
			require.NoError(t, err)
			require.Less(t, val, 3.4, "a byte unigram model of this text has a loss of 3.4")
		})
	}
}

// Results do not depend on the number of threads.
func TestThreadsDoNotMatter(t *testing.T) {
	for _, name := range []string{"bf16", "fp8-smooth"} {
		c := small(t, name)
		c.Train.Accumulate = 2
		want := newTrainer(t, c, 1, false)
		wantSteps := steps(t, want, 4)
		for _, threads := range []int{2, 3} {
			got := newTrainer(t, c, threads, false)
			require.Equal(t, wantSteps, steps(t, got, 4))
			for _, p := range want.Model.Params {
				a, err := want.read(p.Master)
				require.NoError(t, err)
				b, err := got.read(got.Vars.Lookup(p.Name))
				require.NoError(t, err)
				require.Equal(t, a, b, p.Name)
			}
		}
	}
}

// sumTolerance bounds the effect of the order of summation over tokens on a gradient:
// √(number of terms) half ulps of FP32, with a margin for cancellation.
const sumTolerance = 2e-6

// gradients runs one step and returns all gradients and the loss.
func gradients(t *testing.T, tr *team) (loss float64, grads map[string][]float64) {
	t.Helper()
	loss = steps(t, tr, 1)[0].Loss
	grads = map[string][]float64{}
	for _, p := range tr.Model.Params {
		grads[p.Name] = values(t, tr.ranks[0], p.Grad)
	}
	return loss, grads
}

// One batch, two micro-batches, and two ranks with the same tokens give the same loss and
// gradients except for the order of FP32 sums. Delayed scales are equal since the maxima
// are.
func TestBatchesMayBeSplit(t *testing.T) {
	for _, name := range []string{"bf16", "fp8-delayed"} {
		whole := small(t, name)
		whole.Train.MicroBatch = 8
		// The first step's scales come from its first micro-batch, which differs
		// between the splits. So all start from the state after one step.
		start := newTrainer(t, whole, 2, false)
		steps(t, start, 1)
		state := snapshot(t, start)

		begin := func(c Config) *team {
			tr := newTrainer(t, c, 2, false)
			require.NoError(t, tr.Restore(context.Background(), state))
			return tr
		}
		wantLoss, want := gradients(t, begin(whole))
		for form, change := range map[string]func(*Config){
			"accumulate": func(c *Config) { c.Train.MicroBatch, c.Train.Accumulate = 4, 2 },
			"ranks":      func(c *Config) { c.Train.MicroBatch, c.Train.Ranks = 4, 2 },
		} {
			c := whole
			change(&c)
			tr := begin(c)
			loss, got := gradients(t, tr)
			require.InEpsilon(t, wantLoss, loss, sumTolerance, "%s %s", name, form)
			for p := range want {
				require.Less(t, distance(got[p], want[p]), sumTolerance, "%s %s %s", name, form, p)
			}
			if form == "ranks" {
				requireRanksAgree(t, tr)
			}
		}
	}
}

func requireRanksAgree(t *testing.T, tr *team) {
	t.Helper()
	for x := range tr.Vars.All() {
		if x.Class != backend.Param && x.Class != backend.State {
			continue
		}
		require.Equal(t, memory(t, tr.ranks[0], x), memory(t, tr.ranks[1], x), x.Name)
	}
}

// The control of the test above: without the reduction of amaxes the ranks choose
// different scales.
func TestWithoutAmaxReductionScalesDiffer(t *testing.T) {
	c := small(t, "fp8-delayed")
	c.Train.Ranks = 2
	differ := func(localAmax bool) bool {
		tr := newTrainer(t, c, 2, localAmax)
		steps(t, tr, 3)
		history := tr.Model.Scales.History
		return distance(values(t, tr.ranks[0], history), values(t, tr.ranks[1], history)) > 0
	}
	require.False(t, differ(false))
	require.True(t, differ(true))
}

func TestRestoreIsBitIdentical(t *testing.T) {
	const blocks = "fp8-smooth with moments in blocks"
	for _, name := range []string{"bf16", "fp16", "fp8-current", "fp8-smooth", "fp8-head", "deepseek-v3", "mxfp8", "coat-adam", "torchao-adam", blocks} {
		c := small(t, "fp8-smooth")
		if name == blocks {
			c.Precision.StateBlock, c.Precision.Master = new(256), "bf16"
		} else {
			c = small(t, name)
		}
		c.Train.Steps, c.Train.Accumulate = 8, 2
		uninterrupted := newTrainer(t, c, 2, false)
		want := steps(t, uninterrupted, 8)

		stopped := newTrainer(t, c, 2, false)
		steps(t, stopped, 4)
		resumed := newTrainer(t, c, 2, false)
		require.NoError(t, resumed.Restore(context.Background(), snapshot(t, stopped)))
		require.Equal(t, want[4:], steps(t, resumed, 4))
		a, err := uninterrupted.Evaluate(context.Background())
		require.NoError(t, err)
		b, err := resumed.Evaluate(context.Background())
		require.NoError(t, err)
		require.Equal(t, a, b)
	}
}

// With a NaN in a weight, a step is skipped and changes nothing. After the limit the run
// stops with an error that names the first op that reads it.
func TestNonFiniteStepsAreSkippedAndNamed(t *testing.T) {
	c := small(t, "fp8-smooth")
	c.Train.OnNonfinite = 2
	tr := newTrainer(t, c, 2, false)
	steps(t, tr, 2)
	gain := tr.Vars.Lookup("model.layers.1.post_attention_layernorm.weight")
	raw, err := tr.read(gain)
	require.NoError(t, err)
	require.NoError(t, tr.write(gain, append(fp8.AppendFloats(nil, float32(math.NaN())), raw[4:]...)))

	before := map[string][]byte{}
	for x := range tr.Vars.All() {
		if x.Class == backend.Param || x.Class == backend.State {
			if before[x.Name], err = tr.read(x); err != nil {
				t.Fatal(err)
			}
		}
	}
	res, err := tr.Next(context.Background())
	require.NoError(t, err)
	require.True(t, res.Skipped)
	for name, want := range before {
		got, err := tr.read(tr.Vars.Lookup(name))
		require.NoError(t, err)
		require.Equal(t, want, got, name)
	}
	_, err = tr.Next(context.Background())
	require.ErrorIs(t, err, ErrNonFinite)
	require.ErrorContains(t, err, "layers.1.post_attention_layernorm: rmsnorm")
}

func decodeAll(d fp8.DType, raw []byte) []float64 {
	x := make([]float64, len(raw)/d.Size())
	for i := range x {
		code := uint32(0)
		for b := range d.Size() {
			code |= uint32(raw[i*d.Size()+b]) << (8 * b)
		}
		x[i] = float64(d.Float32(code))
	}
	return x
}

// Recomputation of activations reduces memory and changes no result.
func TestRecomputeChangesNoBit(t *testing.T) {
	for _, name := range []string{"bf16", "fp8-current", "fp8-smooth"} {
		c := small(t, name)
		want := newTrainer(t, c, 2, false)
		wantSteps := steps(t, want, 3)
		for _, mode := range []string{"attention", "block"} {
			c.Train.Recompute = mode
			got := newTrainer(t, c, 2, false)
			require.Equal(t, wantSteps, steps(t, got, 3), "%s %s", name, mode)
			less := backend.MakePlan(64, backend.PerOp, got.Micro[Variant{true, true}]).Bytes
			all := backend.MakePlan(64, backend.PerOp, want.Micro[Variant{true, true}]).Bytes
			require.Less(t, less, all, "%s %s", name, mode)
		}
	}
}

// A plan can have more ranks than a run.
func TestMaxRanks(t *testing.T) {
	c := small(t, "bf16")
	c.Train.Ranks = MaxRanks
	require.NoError(t, c.CheckRanks())
	c.Train.Ranks++
	want := "train.ranks = 1025 is more than a run can have; use 1024, or "
	require.ErrorContains(t, c.CheckRanks(), want)
	job, err := NewJob(c, backend.Spec{Backend: "emu", HostMemory: true})
	require.NoError(t, err)
	_, err = NewTrainer(job, nil, nil, nil)
	require.ErrorContains(t, err, want)
}
