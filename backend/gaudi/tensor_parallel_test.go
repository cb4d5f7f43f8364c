//go:build gaudi && cgo && linux

package gaudi

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/world"
	"octet/train"
)

// Ranks that share layers take the steps of ranks that have all of them, within the rounding of
// activations. Ranks with the same parts of the weights have equal weights and moments.
func TestTensorParallel(t *testing.T) {
	const ranks, tensor = 4, 2
	for _, recipe := range []string{"bf16", "fp8-smooth"} {
		t.Run(recipe, func(t *testing.T) {
			inRanks(t, "gaudi3", ranks, func(t *testing.T, g *world.Group) {
				run := func(tensor, batch, stage int) (list []train.StepResult, compared int) {
					c := small(recipe)
					c.Model.Layers, c.Model.KVHeads, c.Model.FFN = 1, 2, 64
					c.Train.Ranks, c.Train.Tensor, c.Train.MicroBatch, c.Train.ZeroStage = ranks, tensor, batch, stage
					tr, d := trainerOf(t, c, "gaudi", g)
					list = take(t, tr, 3)
					for x := range tr.Vars.All() {
						if stage > 0 || x.Class != backend.Param && x.Class != backend.State {
							continue
						}
						all := hashes(t, g, x.Name, readRaw(t, d, x))
						for rank, h := range all {
							require.Equal(t, all[rank%tensor], h, "%s of rank %d", x.Name, rank)
						}
						compared++
					}
					for _, r := range list {
						sameOnAll(t, g, "loss", []byte(fmt.Sprint(r.Loss)))
					}
					require.NoError(t, d.Close())
					return list, compared
				}
				want, _ := run(1, 1, 0)
				for stage := range 4 {
					got, compared := run(tensor, tensor, stage)
					for i := range want {
						require.InDelta(t, want[i].Loss, got[i].Loss, 2e-3, "stage %d", stage)
						require.InEpsilon(t, want[i].GradNorm, got[i].GradNorm, 2e-2)
					}
					require.True(t, stage > 0 || compared > 20, "%d tensors", compared)
				}
			})
		})
	}
}
