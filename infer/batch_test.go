package infer_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
	"octet/infer"
)

// A batch of prompts of different lengths gives the tokens that each gives alone, also if others
// stop early.
func TestBatchesAreRuns(t *testing.T) {
	for _, name := range []string{"bf16", "fp8-smooth"} {
		m := trainSmall(t, name)
		ctx := t.Context()
		prompts := [][]int32{make([]int32, 3), make([]int32, 81), make([]int32, 40)}
		for i, p := range prompts {
			for k := range p {
				p[k] = int32(m.val[i*100+k])
			}
		}
		s := infer.Sampling{TopP: 0.9, Temperature: 1, Seed: 5}
		alone, err := infer.NewGenerator(ctx, m.config.ModelConfig(), m.recipe, m.weights, device(t), infer.Cache{Batch: 1, Context: 100})
		require.NoError(t, err)
		batch, err := infer.NewGenerator(ctx, m.config.ModelConfig(), m.recipe, m.weights, device(t), infer.Cache{Batch: 4, Context: 100})
		require.NoError(t, err)
		for shift := range prompts {
			rotated := slices.Concat(prompts[shift:], prompts[:shift])
			var want []int32
			require.NoError(t, alone.Generate(ctx, rotated[0], 15, s, func(token int32) bool {
				want = append(want, token)
				return true
			}))
			got := make([][]int32, len(prompts))
			require.NoError(t, batch.GenerateBatch(ctx, rotated, 15, s, func(i int, token int32) bool {
				got[i] = append(got[i], token)
				return i != 1 || len(got[i]) < 4
			}))
			require.Equal(t, want, got[0])
			require.Len(t, got[1], 4)
			require.Len(t, got[2], 15)
		}
		same := make([][]int32, 4) // one prompt has other continuations in each place
		require.NoError(t, batch.GenerateBatch(ctx, slices.Repeat(prompts[:1], 4), 15, s, func(i int, token int32) bool {
			same[i] = append(same[i], token)
			return true
		}))
		require.NotEqual(t, same[0], same[1])
		require.NotEqual(t, same[2], same[3])
		require.ErrorContains(t, batch.GenerateBatch(ctx, slices.Repeat(prompts, 2), 1, s, nil), "6 prompts: expected 1 to 4")
	}
}

// A KV cache in eight bits changes the logits by about the error of a cast with a scale for each
// head, less with more bits of mantissa; the keys of a prompt are the same from prefill and decode.
func TestCacheFormats(t *testing.T) {
	m := trainSmall(t, "bf16")
	ctx := t.Context()
	ids := make([]int32, 90)
	for i := range ids {
		ids[i] = int32(m.val[i])
	}
	logits := func(format fp8.DType) [][]float32 {
		g, err := infer.NewGenerator(ctx, m.config.ModelConfig(), m.recipe, m.weights, device(t), infer.Cache{Batch: 1, Context: 100, Format: format})
		require.NoError(t, err)
		all, err := g.Logits(ctx, ids)
		require.NoError(t, err)
		var prompted []int32
		require.NoError(t, g.Generate(ctx, ids[:70], 5, infer.Sampling{TopP: 1}, func(token int32) bool {
			prompted = append(prompted, token)
			return true
		}))
		require.EqualValues(t, argmax(all[69]), prompted[0])
		return all
	}
	plain := logits(0)
	distance := func(format fp8.DType) float64 {
		diff, norm := 0.0, 0.0
		for i, row := range logits(format) {
			for j, x := range row {
				diff += math.Pow(float64(x-plain[i][j]), 2)
				norm += math.Pow(float64(plain[i][j]), 2)
			}
		}
		return math.Sqrt(diff / norm)
	}
	e4m3, e5m2 := distance(fp8.E4M3), distance(fp8.E5M2)
	require.Greater(t, e4m3, 1e-4)
	require.Less(t, e4m3, 0x1p-4, "half the distance of codes, relative")
	require.Greater(t, e5m2, e4m3)
	require.Less(t, e5m2, 0x1p-3)
	_, err := infer.NewGenerator(ctx, m.config.ModelConfig(), m.recipe, m.weights, device(t), infer.Cache{Batch: 1, Context: 100, Format: fp8.F16})
	require.ErrorContains(t, err, "expected a format of eight bits")
}

func argmax(x []float32) (best int) {
	for i := range x {
		if x[i] > x[best] {
			best = i
		}
	}
	return best
}
