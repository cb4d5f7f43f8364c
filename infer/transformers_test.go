package infer_test

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/checkpoint"
	"octet/infer"
	"octet/recipe"
	"octet/train"
)

// The logits of models that transformers 5.24.0 (torch 2.15.0) wrote are those that it computed
// itself in FP32, stored in logits.f32. Each folder has random weights in BF16 and one layer of width
// 16. Token i of 96 is (i² + ⌊3i/2⌋) mod 16. The frequencies of llama3 and linear are scaled, the
// first from 32 original positions; qwen2 has biases; qwen3 has norms of heads and heads of 16
// where dim / heads is 8.
func TestLogitsOfTransformers(t *testing.T) {
	fp32, err := recipe.Lookup("fp32")
	require.NoError(t, err)
	ids := make([]int32, 96)
	for i := range ids {
		ids[i] = int32((i*i + 3*i/2) % 16)
	}
	for _, name := range []string{"llama3", "linear", "qwen2", "qwen3"} {
		dir := filepath.Join("testdata", "transformers", name)
		raw, err := os.ReadFile(filepath.Join(dir, "logits.f32"))
		require.NoError(t, err)
		logits := func(edit func(*checkpoint.Config)) (distance float64) {
			c, tensors, err := checkpoint.OpenModel(dir)
			require.NoError(t, err)
			require.NoError(t, tensors.Match(c))
			edit(&c)
			model, err := train.FromHF(c)
			require.NoError(t, err)
			g, err := infer.NewGenerator(t.Context(), model, fp32, train.CheckpointWeights{Model: tensors}, device(t), infer.Cache{Batch: 1, Context: len(ids)})
			require.NoError(t, err)
			rows, err := g.Logits(t.Context(), ids)
			require.NoError(t, err)
			require.NoError(t, tensors.Close())
			apart, size := 0.0, 0.0
			for i, row := range rows {
				require.Len(t, row, 16)
				for j, x := range row {
					want := float64(math.Float32frombits(binary.LittleEndian.Uint32(raw[4*(16*i+j):])))
					apart, size = apart+(float64(x)-want)*(float64(x)-want), size+want*want
				}
			}
			require.Len(t, raw, 4*16*len(rows))
			return math.Sqrt(apart / size)
		}
		require.Less(t, logits(func(*checkpoint.Config) {}), 3e-6, name)
		if name == "llama3" || name == "linear" {
			require.Greater(t, logits(func(c *checkpoint.Config) { c.RopeScaling = checkpoint.RopeScaling{} }), 0.1, "without the scaling of %s", name)
		}
	}
}
