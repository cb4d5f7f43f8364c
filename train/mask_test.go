package train

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// flushedBy returns, for formats, the share of the elements of dY that a cast to it makes 0, in
// the layers of a BF16 run with 2,048 tokens per step.
func flushedBy(t *testing.T, formats ...string) []float64 {
	t.Helper()
	c := small(t, "bf16")
	c.Train.MicroBatch = 64
	tr, d := corruptible(t, c)
	steps(t, tr, 4)
	total, zero := 0, make([]int, len(formats))
	d.corrupt = func(n *backend.Node, m backend.Memory) error {
		op, ok := n.Op.(*backend.MatMul)
		if !ok || !op.TransA || !strings.HasPrefix(op.A.Name, "layers.") {
			return nil
		}
		raw, err := m.Read(op.A)
		require.NoError(t, err)
		x := make([]float32, op.A.Elems())
		op.A.DType.Decode(x, raw)
		codes := make([]uint16, len(x))
		for i, name := range formats {
			format, err := fp8.ParseDType(name)
			require.NoError(t, err)
			fp8.EncodeBF16As(codes, x, format)
			for j, code := range codes {
				if x[j] != 0 && code&0x7fff == 0 {
					zero[i]++
				}
			}
		}
		total += len(x)
		return nil
	}
	steps(t, tr, 1)
	shares := make([]float64, len(formats))
	for i, n := range zero {
		shares[i] = float64(n) / float64(total)
	}
	return shares
}

// Without scales the bits of the exponent decide how much of dY remains. E7M7, which fails in
// arXiv 2405.18710, loses nothing: its smallest normal value is 2^-62.
func TestMaskedGradients(t *testing.T) {
	formats := []string{"e8m3mask", "e7m7mask", "e6m7mask", "e5m7mask", "e4m7mask"}
	shares := flushedBy(t, formats...)
	for i, name := range formats {
		t.Logf("%s makes %5.1f %% of dY 0", name, 100*shares[i])
	}
	require.Zero(t, shares[0])
	require.Zero(t, shares[1])
	require.Less(t, shares[2], 0.2)
	require.Greater(t, shares[3], 0.5)
	require.Greater(t, shares[4], 0.99)
}

// E8M3 and E7M7 learn like BF16. E5M7 and the control, E4M7, lose gradients and end above.
func TestMasksLearn(t *testing.T) {
	loss := map[string]float64{}
	for _, name := range []string{"bf16", "bf16-e8m3-mask", "bf16-e7m7-mask", "bf16-e5m7-mask", "bf16-e4m7-mask"} {
		c := small(t, name)
		c.Train.MicroBatch, c.Train.Steps = 64, 30
		list := steps(t, newTrainer(t, c, 2, false), c.Train.Steps)
		loss[name] = list[len(list)-1].Loss
		t.Logf("%-15s %.4f", name, loss[name])
	}
	require.InDelta(t, loss["bf16"], loss["bf16-e7m7-mask"], 1e-3)
	require.InDelta(t, loss["bf16"], loss["bf16-e8m3-mask"], 0.1)
	require.Greater(t, loss["bf16-e5m7-mask"], loss["bf16"]+0.1)
	require.Greater(t, loss["bf16-e4m7-mask"], loss["bf16"]+0.1)
}
