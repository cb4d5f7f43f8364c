package train

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
)

// Under mu-s the codes of a weight are those of muS's weight of unit variance, U = W·√in, cast without
// a scale, also after a change of recipe, whose scales have the same names. The constant of gradients
// counts the tokens of all ranks and micro-batches.
func TestConstantScalesInTraining(t *testing.T) {
	c := small(t, "fp8-delayed")
	c.Model.Norm, c.Model.InitRule, c.Model.EmbedScale = "post", "fan-in", 16
	c.Train.Accumulate, c.Train.Ranks, c.Train.Steps = 2, 2, 10
	tr := newTrainer(t, scheduled(c, RecipeChange{2, "mu-s"}), 1, false)
	for _, r := range steps(t, tr, 4) {
		require.False(t, r.Skipped)
	}
	require.Equal(t, "mu-s", tr.Recipe.Name)
	require.EqualValues(t, tr.TokensPerStep(), tr.Model.StepTokens)
	require.EqualValues(t, 2*2*4*32, tr.Model.StepTokens)
	compared := 0
	for p, copies := range tr.Model.WeightCopies() {
		for _, w := range copies {
			if !w.DType.IsQuantized() {
				continue
			}
			compared++
			unit := readMaster(t, tr, p)
			for i := range unit {
				unit[i] *= float32(math.Sqrt(float64(p.Cols())))
			}
			want, got := make([]uint8, len(unit)), make([]byte, w.Bytes())
			fp8.Quantize8(want, unit, fp8.E4M3, 1, false)
			require.NoError(t, tr.ranks[0].device.Read(w, got))
			require.Equal(t, want, got, w.Name)
		}
	}
	require.Equal(t, 2*7, compared)
}
