package train

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// inE4M3 returns the config of a run whose weight gradients are stored in E4M3.
func inE4M3(t *testing.T, recipe string) Config {
	t.Helper()
	c := small(t, recipe)
	c.Precision.GradAccum, c.Train.MicroBatch = "e4m3", 2
	return c
}

// dequantized returns a stored tensor of rank 0.
func dequantized(t *testing.T, tr *Trainer, x *backend.Tensor) []float64 {
	t.Helper()
	list := values(t, tr, x)
	if x.Scale != nil {
		scale := values(t, tr, x.Scale)[0]
		for i := range list {
			list[i] *= scale
		}
	}
	return list
}

// After one micro-batch a stored gradient is the cast of the FP32 gradient; also if ranks reduce
// it first, in FP32 or as codes, and if each rank has a part of the rows, with padding or without.
func TestStoredGradientsAreCasts(t *testing.T) {
	for _, c := range []struct {
		ranks, stage int
		reduce       string
	}{{1, 0, ""}, {2, 0, ""}, {2, 1, ""}, {2, 1, "e4m3"}, {3, 1, ""}, {3, 1, "bf16"}} {
		t.Run(fmt.Sprintf("ranks%d-stage%d-%s", c.ranks, c.stage, c.reduce), func(t *testing.T) {
			config := inE4M3(t, "fp8-current")
			config.Train.Ranks, config.Train.ZeroStage, config.Precision.Reduce = c.ranks, c.stage, c.reduce
			stored := newTrainer(t, config, 1, false)
			config.Precision.GradAccum = ""
			wide := newTrainer(t, config, 1, false)
			steps(t, stored, 1)
			steps(t, wide, 1)
			amaxes := map[string]float64{}
			for rank := range c.ranks {
				for _, p := range wide.Model.Params {
					for _, x := range values(t, wide.ranks[rank], p.Reduced) {
						amaxes[p.Name] = max(amaxes[p.Name], math.Abs(x))
					}
				}
			}
			quantized := 0
			for rank := range c.ranks {
				for i, p := range stored.Model.Params {
					want := values(t, wide.ranks[rank], wide.Model.Params[i].Reduced)
					got := dequantized(t, stored.ranks[rank], p.Reduced)
					if !p.Quantized {
						require.Equal(t, want, got, p.Name)
						continue
					}
					quantized++
					require.Equal(t, fp8.E4M3, p.Grad.DType)
					scale, _ := fp8.ScaleFor(float32(amaxes[p.Name]), 448, true)
					for j, x := range want {
						code := fp8.E4M3.Nearest(float32(x)*scale, fp8.Saturate)
						want[j] = float64(fp8.E4M3.Float32(code) / scale)
					}
					require.Equal(t, want, got, p.Name)
				}
			}
			require.Equal(t, c.ranks*14, quantized)
		})
	}
}

// Training with E4M3 gradients of four micro-batches follows that with FP32 gradients, with one
// rank and with two. The tolerance tells: with a quarter of the sequences the loss differs more.
func TestTrainingWithStoredGradients(t *testing.T) {
	config := inE4M3(t, "bf16")
	config.Train.Accumulate, config.Optimizer.LR = 4, 0.01
	last := func(change func(*Config)) float64 {
		c := config
		change(&c)
		list := steps(t, newTrainer(t, c, 2, false), 25)
		return list[len(list)-1].Loss
	}
	wide := last(func(c *Config) { c.Precision.GradAccum = "fp32" })
	narrow := last(func(*Config) {})
	require.InEpsilon(t, wide, narrow, 0.005)
	require.NotEqual(t, wide, narrow)
	require.InEpsilon(t, wide, last(func(c *Config) { c.Precision.GradAccum = "bf16" }), 0.002)
	one := last(func(c *Config) { c.Train.Accumulate = 1 })
	require.Greater(t, math.Abs(one/wide-1), 0.01)
}

// The sum of many micro-batches in FP8 is a note of plan and train.
func TestNoteOnAccumulation(t *testing.T) {
	for _, c := range []struct {
		n      int
		format string
		want   bool
	}{{16, "e4m3", false}, {17, "e4m3", true}, {17, "e5m2", true}, {64, "bf16", false}, {64, "fp32", false}} {
		config := inE4M3(t, "bf16")
		config.Train.Accumulate, config.Precision.GradAccum = c.n, c.format
		j, err := NewJob(config, specOf(t, "emu"))
		require.NoError(t, err)
		found := false
		for _, note := range j.Notes {
			found = found || note == fmt.Sprintf("a sum of %d micro-batches in %s loses small gradients: use precision.grad_accum=bf16, or a train.accumulate of at most 16", c.n, c.format)
		}
		require.Equal(t, c.want, found, "%d %s %v", c.n, c.format, j.Notes)
	}
}
