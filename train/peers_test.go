package train

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/recipe"
)

// Each recipe of another system learns as the method does. A resumed run, one with another
// number of threads and one with recomputation have bit-identical steps.
func TestPeersLearn(t *testing.T) {
	for _, name := range recipe.Names() {
		r, err := recipe.Lookup(name)
		require.NoError(t, err)
		if r.Kind != recipe.Peer {
			continue
		}
		t.Run(name, func(t *testing.T) {
			c := small(t, name)
			c.Train.Steps = 40
			tr := newTrainer(t, c, 2, false)
			list := steps(t, tr, 4)
			state := snapshot(t, tr)
			list = append(list, steps(t, tr, 36)...)
			require.InDelta(t, math.Log(256), list[0].Loss, 0.2, "an untrained model predicts the uniform distribution")
			val, err := tr.Evaluate(context.Background())
			require.NoError(t, err)
			require.Less(t, val, 3.4, "a byte unigram model of this text has a loss of 3.4")

			c.Train.Recompute = "block"
			again := newTrainer(t, c, 3, false)
			require.Equal(t, list[:4], steps(t, again, 4))
			resumed := newTrainer(t, c, 1, false)
			require.NoError(t, resumed.Restore(context.Background(), state))
			require.Equal(t, list[4:8], steps(t, resumed, 4))
		})
	}
}
