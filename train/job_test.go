package train

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/recipe"
)

// small is a model that trains in milliseconds.
func small(t *testing.T, recipeName string) Config {
	t.Helper()
	c := Default()
	c.Recipe = recipeName
	c.Model.Layers, c.Model.Dim, c.Model.Heads, c.Model.KVHeads, c.Model.FFN = 2, 32, 2, 1, 48
	c.Data.Seq, c.Train.MicroBatch = 32, 4
	return c
}

func TestEveryRecipeRecords(t *testing.T) {
	for _, name := range recipe.Names() {
		for _, recompute := range []string{"none", "attention", "block"} {
			c := small(t, name)
			c.Train.Accumulate = 3
			c.Train.Recompute = recompute
			j, err := NewJob(c)
			require.NoError(t, err, name)
			for _, p := range j.Programs() {
				require.NoError(t, p.Err())
			}
		}
	}
}
