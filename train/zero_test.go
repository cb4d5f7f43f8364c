package train

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/recipe"
)

// The stages of ZeRO change no bit in a step of one micro-batch, whose gradients every stage
// sums in the same order.
func TestStagesChangeNoBit(t *testing.T) {
	for _, name := range recipe.Names() {
		for stage := 2; stage <= 3; stage++ {
			t.Run(fmt.Sprint(name, " ", stage), func(t *testing.T) {
				c := small(t, name)
				c.Optimizer.Clip, c.Train.MicroBatch, c.Train.Ranks = 0, 2, 2
				want := newTrainer(t, shared(c, 2), 2, false)
				c = shared(c, 2)
				c.Train.ZeroStage = stage
				got := newTrainer(t, c, 2, false)
				require.Equal(t, steps(t, want, 4), steps(t, got, 4))
				require.Equal(t, saved(t, want), saved(t, got))
			})
		}
	}
}
