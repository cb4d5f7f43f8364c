package infer_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

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
		alone, err := infer.NewGenerator(ctx, m.config.ModelConfig(), m.recipe, m.weights, device(t), 1, 100)
		require.NoError(t, err)
		batch, err := infer.NewGenerator(ctx, m.config.ModelConfig(), m.recipe, m.weights, device(t), 4, 100)
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
		require.ErrorContains(t, batch.GenerateBatch(ctx, slices.Repeat(prompts, 2), 1, s, nil), "6 prompts: expected 1 to 4")
	}
}
