package train

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/checkpoint"
	"octet/fp8"
	"octet/recipe"
)

// shared returns the config of a run whose ranks share the optimizer state.
func shared(c Config, ranks int) Config {
	c.Train.Ranks, c.Train.ZeroStage = ranks, 1
	return c
}

// saved returns every tensor of a checkpoint: format, shape and bytes.
func saved(t *testing.T, tr *team) map[string]string {
	t.Helper()
	c := snapshot(t, tr)
	all := map[string]string{}
	for file, list := range map[string]*checkpoint.Tensors{"model": c.Model, "optimizer": c.Optimizer} {
		for _, x := range list.List() {
			var b bytes.Buffer
			require.NoError(t, x.Data(&b))
			all[file+" "+x.Name] = fmt.Sprintf("%s %v %x", x.DType, x.Shape, sha256.Sum256(b.Bytes()))
		}
	}
	return all
}

// Without clipping, results do not depend on the gradient norm. Then a run with sharded
// state is bit-identical to one with replicated state, with every recipe and every format
// of the state.
func TestSharingChangesNoBit(t *testing.T) {
	runs := map[string]Config{}
	for _, name := range recipe.Names() {
		if r, err := recipe.Lookup(name); err == nil && !r.Optimizer.Flat && r.Reduce.FP32() { // blocks of several rows are not shared, and codes travel only to shards
			runs[name] = small(t, name)
		}
	}
	with := func(name string, change func(*Config)) {
		c := small(t, "fp8-smooth")
		change(&c)
		runs[name] = c
	}
	with("blocks", func(c *Config) { c.Precision.StateBlock, c.Precision.Master = new(256), "bf16" })
	with("all matrices", func(c *Config) { c.Precision.StateScope = "all" })
	with("expanded blocks", func(c *Config) {
		c.Precision.StateBlock, c.Precision.StateExpand, c.Precision.M2 = new(128), new(true), "e4m3"
	})
	with("all matrices, tied", func(c *Config) { c.Precision.StateScope, c.Precision.StateBlock, c.Model.Tied = "head", new(256), true })
	with("bf16 moments", func(c *Config) { c.Precision.M1, c.Precision.M2 = "bf16", "f16" })
	with("nearest", func(c *Config) { c.Precision.Rounding = "nearest" })
	with("tied", func(c *Config) { c.Model.Tied = true })
	with("block recompute", func(c *Config) { c.Train.Recompute = "block" })
	for name, c := range runs {
		t.Run(name, func(t *testing.T) {
			c.Optimizer.Clip, c.Train.Accumulate, c.Train.MicroBatch, c.Train.Ranks = 0, 2, 2, 2
			all := newTrainer(t, c, 2, false)
			part := newTrainer(t, shared(c, 2), 2, false)
			want, got := steps(t, all, 4), steps(t, part, 4)
			for i := range want {
				require.InEpsilon(t, want[i].GradNorm, got[i].GradNorm, normTolerance)
				got[i].GradNorm = want[i].GradNorm
			}
			require.Equal(t, want, got)
			require.Equal(t, saved(t, all), saved(t, part))
		})
	}
}

// normTolerance bounds the effect of the order of sums on the norm. The sum of squares of
// each of two ranks, that of the vectors and the total are rounded to FP32, with
// replicated state only the total: five roundings with a relative error of half an ulp
// each, halved by the root.
const normTolerance = 5 * 0x1p-25

// Each of four ranks holds a quarter of every tensor that can be sharded, and all of the
// others.
func TestRanksHoldShards(t *testing.T) {
	for _, name := range []string{"bf16", "fp8-smooth"} {
		c := small(t, name)
		c.Train.MicroBatch, c.Train.Ranks = 1, 4
		whole := newTrainer(t, c, 2, false)
		part := newTrainer(t, shared(c, 4), 2, false)
		require.Equal(t, saved(t, whole), saved(t, part), "initial state")
		steps(t, part, 1)
		for _, p := range part.Model.Params {
			for _, x := range []*backend.Tensor{p.Master, part.optimizer.m1[p], part.optimizer.m2[p]} {
				want := whole.Vars.Lookup(x.Name).Elems()
				if p.Matrix {
					want /= 4
					require.NotEqual(t, memory(t, part.ranks[0], x), memory(t, part.ranks[3], x), x.Name)
				}
				require.Equal(t, want, x.Elems(), x.Name)
			}
		}
	}
}

// Ranks that share FP16 masters gather the weights of linear layers as FP8 codes: half the bytes.
// Five ranks do not divide the rows, and gather masters.
func TestRanksGatherCodes(t *testing.T) {
	for ranks, want := range map[int]fp8.DType{2: fp8.E4M3, 5: fp8.F16} {
		c := small(t, "fp8-delayed")
		c.Precision.Master = "f16"
		j, err := NewJob(shared(c, ranks), backend.Spec{})
		require.NoError(t, err)
		gathered, codes, masters := 0, int64(0), int64(0)
		for _, n := range j.Update.Nodes() {
			if o, ok := n.Op.(*backend.AllGather); ok && strings.Contains(o.X.Name, "_proj.weight") {
				require.Equal(t, want, o.X.DType, o.X.Name)
				gathered++
				codes += o.Out.Bytes()
			}
		}
		for _, p := range j.Model.Params {
			if p.Quantized {
				gathered--
				masters += int64(ranks) * p.Master.Bytes()
			}
		}
		require.Zero(t, gathered, "one for each weight")
		require.Equal(t, masters*int64(want.Size())/2, codes)
	}
}

// A rank's rows of cast weights are freed after their gather, and the codes of gradients after
// their sum: neither grows with the number of layers.
func TestExchangedCodesAreFreed(t *testing.T) {
	arenas := func(layers int, reduce string) (update, micro int64) {
		c := small(t, "bf16")
		c.Model.Layers, c.Precision.Reduce = layers, reduce
		j, err := NewJob(shared(c, 2), backend.Spec{})
		require.NoError(t, err)
		arena := func(p *backend.Program) int64 { return backend.MakePlan(64, backend.PerOp, p).Bytes }
		return arena(j.Update), arena(j.Micro[Variant{First: true, Last: true}])
	}
	update, few := arenas(2, "fp32")
	more, many := arenas(12, "fp32")
	_, fewCodes := arenas(2, "e4m3")
	_, manyCodes := arenas(12, "e4m3")
	require.Equal(t, update, more)
	require.LessOrEqual(t, manyCodes-many, fewCodes-few)
}

// Ranks that exchange gradients in FP8 move a quarter of the bytes, and as many scales as 1/128 of
// the elements. The losses stay near those of FP32.
func TestRanksExchangeGradientCodes(t *testing.T) {
	c := small(t, "bf16")
	c.Train.MicroBatch, c.Train.Accumulate = 2, 2
	wide := shared(c, 2)
	c.Precision.Reduce = "e4m3"
	narrow := shared(c, 2)
	scattered := func(j *Job) (f32, codes, scales int64) {
		for _, n := range j.Micro[Variant{Last: true}].Nodes() {
			switch o := n.Op.(type) {
			case *backend.ReduceScatter:
				f32 += o.X.Bytes()
			case *backend.AllToAll:
				if o.X.DType == fp8.E4M3 {
					codes += o.X.Bytes()
				} else {
					scales += o.X.Bytes()
				}
			}
		}
		return f32, codes, scales
	}
	all, few := newTrainer(t, wide, 2, false), newTrainer(t, narrow, 2, false)
	before, _, _ := scattered(all.Job)
	rest, codes, scales := scattered(few.Job)
	quantized, blocks := int64(0), int64(0)
	for _, p := range few.Model.Params {
		if p.Quantized {
			quantized += int64(p.Elems())
			blocks += int64(p.Elems() / p.Cols()) // rows are shorter than 128
		}
	}
	require.Equal(t, []int64{before - 4*quantized, quantized, 4 * blocks}, []int64{rest, codes, scales})

	want, got := steps(t, all, 10), steps(t, few, 10)
	require.NotEqual(t, want, got)
	for i := range want {
		require.InDelta(t, want[i].Loss, got[i].Loss, 5e-3, "step %d", i+1)
	}
	c.Train.Ranks = 2
	require.ErrorContains(t, c.Resolve(), `precision.reduce = "e4m3" needs ranks that share the optimizer state`)
}

// With clipping, the last bits of the norm affect the clip coefficient and so the weights.
// After eight steps the losses still agree within 1e-4.
func TestSharingWithClipping(t *testing.T) {
	c := small(t, "bf16")
	c.Optimizer.Clip, c.Train.Ranks = 0.1, 2
	want, got := steps(t, newTrainer(t, c, 2, false), 8), steps(t, newTrainer(t, shared(c, 2), 2, false), 8)
	for i := range want {
		require.Greater(t, want[i].GradNorm, 0.1, "the gradient is clipped")
		require.InEpsilon(t, want[i].Loss, got[i].Loss, 1e-4)
	}
	require.InEpsilon(t, want[0].GradNorm, got[0].GradNorm, normTolerance)
}

// Checkpoints hold full tensors: a run resumes from one bit-identically, and the state can
// be loaded with another number of shards, or replicated.
func TestSharedStateIsRestored(t *testing.T) {
	for _, name := range []string{"bf16", "fp8-smooth", "coat-adam", "blocks"} {
		c := small(t, "fp8-smooth")
		if name == "blocks" {
			c.Precision.StateBlock = new(256)
		} else {
			c = small(t, name)
		}
		c.Optimizer.Clip, c.Train.Steps, c.Train.MicroBatch = 0, 8, 2
		uninterrupted := newTrainer(t, shared(c, 2), 2, false)
		want := steps(t, uninterrupted, 6)

		stopped := newTrainer(t, shared(c, 2), 2, false)
		steps(t, stopped, 3)
		state, held := snapshot(t, stopped), saved(t, stopped)
		resumed := newTrainer(t, shared(c, 2), 2, false)
		require.NoError(t, resumed.Restore(t.Context(), state))
		require.Equal(t, want[3:], steps(t, resumed, 3))
		require.Equal(t, saved(t, uninterrupted), saved(t, resumed))

		other := c
		other.Train.Ranks = 2
		for _, c := range []Config{other, shared(c, 4), shared(c, 1)} {
			tr := newTrainer(t, c, 2, false)
			require.NoError(t, tr.Restore(t.Context(), state))
			require.Equal(t, held, saved(t, tr))
		}
	}
}

// A change of recipe, telemetry, evaluation and a rewind give the same results with
// sharded and replicated state.
func TestSharedStateChangesRecipe(t *testing.T) {
	c := small(t, "bf16")
	c.Optimizer.Clip, c.Train.Steps, c.Train.MicroBatch, c.Train.Ranks, c.Train.HealthEvery = 0, 100, 2, 2, 1
	c = scheduled(c, RecipeChange{3, "fp8-smooth"}, RecipeChange{6, "bf16"})
	all, part := newTrainer(t, c, 2, false), newTrainer(t, shared(c, 2), 2, false)
	var back *checkpoint.Checkpoint
	for i := range 8 {
		want, got := steps(t, all, 1)[0], steps(t, part, 1)[0]
		require.Equal(t, want.Loss, got.Loss, "step %d", i+1)
		wantHealth, err := all.Health(t.Context())
		require.NoError(t, err)
		gotHealth, err := part.Health(t.Context())
		require.NoError(t, err)
		require.Equal(t, wantHealth, gotHealth)
		wantLoss, err := all.Evaluate(t.Context())
		require.NoError(t, err)
		gotLoss, err := part.Evaluate(t.Context())
		require.NoError(t, err)
		require.Equal(t, wantLoss, gotLoss)
		if i == 3 {
			back = snapshot(t, part)
		}
	}
	require.Equal(t, saved(t, all), saved(t, part))
	for _, tr := range []*team{all, part} {
		require.NoError(t, tr.Rewind(context.Background(), back))
		steps(t, tr, 1)
	}
	require.Equal(t, saved(t, all), saved(t, part))
}

// A non-finite gradient on one rank skips the update on all ranks.
func TestSharedUpdatesAreSkippedByAll(t *testing.T) {
	c := small(t, "fp8-smooth")
	c.Train.MicroBatch = 2
	tr := newTrainer(t, shared(c, 2), 2, false)
	steps(t, tr, 1)
	// The last row of the head is in the second rank's shard; both ranks read it.
	head := tr.Vars.Lookup("lm_head.weight")
	raw, err := tr.read(head)
	require.NoError(t, err)
	for i := range 4 {
		raw[len(raw)-1-i] = 0x7f // NaN
	}
	require.NoError(t, tr.write(head, raw))
	require.NoError(t, tr.prepare(t.Context()))
	before := saved(t, tr)
	require.True(t, steps(t, tr, 1)[0].Skipped)
	require.Equal(t, before, saved(t, tr))
}

func TestInvalidStage(t *testing.T) {
	c := shared(small(t, "bf16"), 3)
	require.NoError(t, c.Validate(recipe.Names()))
	c.Train.ZeroStage = 4
	require.ErrorContains(t, c.Validate(recipe.Names()), "train.zero_stage = 4 is out of range")
}

// A number of ranks that does not divide the rows changes no bit of a step, of a checkpoint
// or of a run that resumes from it with another number of ranks. With 20 ranks some hold
// padding alone.
func TestShardsWithPadding(t *testing.T) {
	configs := map[string]Config{"bf16": small(t, "bf16"), "fp8-smooth": small(t, "fp8-smooth"), "nvfp4": small(t, "nvfp4")}
	c := small(t, "fp8-smooth")
	c.Precision.StateBlock, c.Precision.Master, c.Model.Tied = new(256), "bf16", true
	configs["blocks"] = c
	c = small(t, "fp8-paper") // its micro-batches read a master
	configs["fp8-paper"] = c
	for name, c := range configs {
		for _, ranks := range []int{3, 5, 20} {
			if ranks == 20 && name != "blocks" {
				continue
			}
			t.Run(fmt.Sprint(name, ranks), func(t *testing.T) {
				c := c
				c.Optimizer.Clip, c.Train.MicroBatch, c.Train.Ranks = 0, 1, ranks
				all := newTrainer(t, c, 2, false)
				part := newTrainer(t, shared(c, ranks), 2, false)
				padded := 0
				for _, p := range part.Model.Params {
					if ranks*p.Master.Rows() > p.Shape[0] {
						padded++
					}
				}
				require.Positive(t, padded)
				for range 2 {
					want, got := steps(t, all, 2), steps(t, part, 2)
					for i := range want {
						require.Equal(t, want[i].Loss, got[i].Loss)
						require.InEpsilon(t, want[i].GradNorm, got[i].GradNorm, float64(ranks)*normTolerance)
					}
					whole := saved(t, all)
					require.Equal(t, whole, saved(t, part))
					state := snapshot(t, all)
					part = newTrainer(t, shared(c, ranks), 2, false)
					require.NoError(t, part.Restore(t.Context(), state))
					require.Equal(t, whole, saved(t, part))
				}
			})
		}
	}
}

// Moments in another device's E4M3 are converted equally for sharded and replicated state.
func TestSharedStateIsConverted(t *testing.T) {
	c := small(t, "fp8-smooth")
	c.Train.MicroBatch, c.Train.Ranks = 2, 2
	from := newTrainerFor(t, shared(c, 2), specOf(t, gaudi2), 2, false)
	steps(t, from, 2)
	state := snapshot(t, from)
	var held []map[string]string
	for _, c := range []Config{c, shared(c, 2)} {
		tr := newTrainer(t, c, 2, false)
		require.NoError(t, tr.Restore(t.Context(), state))
		require.True(t, tr.Converted)
		held = append(held, saved(t, tr))
	}
	require.Equal(t, held[0], held[1])
}
