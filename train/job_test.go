package train

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/recipe"
)

// small is a model that trains in milliseconds.
func small(t *testing.T, recipeName string) Config {
	t.Helper()
	c := Default()
	c.Recipe = recipeName
	c.Model.Layers, c.Model.Dim, c.Model.Heads, c.Model.KVHeads, c.Model.FFN = 2, 32, 2, 1, 48
	c.Data.Seq, c.Train.MicroBatch = 32, 4
	if recipeName == "nvfp4" {
		c.Model.Layers = 3 // the first and the last one are BF16
	}
	return c
}

func TestEveryRecipeRecords(t *testing.T) {
	for _, name := range recipe.Names() {
		for _, recompute := range []string{"none", "attention", "block"} {
			c := small(t, name)
			c.Train.Accumulate = 3
			c.Train.Recompute = recompute
			j, err := NewJob(c, specOf(t, "emu"))
			require.NoError(t, err, name)
			for _, p := range j.Programs() {
				require.NoError(t, p.Err())
			}
			for v, p := range j.Micro {
				require.Contains(t, j.Programs(), p, v)
			}
		}
	}
}

// FLOPsPerToken, and with it the MFU, does not count recomputation.
func TestFLOPsExcludeRecompute(t *testing.T) {
	want := 0.0
	for _, recompute := range []string{"none", "attention", "block"} {
		c := small(t, "fp8-smooth")
		c.Train.Recompute = recompute
		j, err := NewJob(c, specOf(t, "emu"))
		require.NoError(t, err)
		if want == 0 {
			want = j.FLOPsPerToken()
		}
		require.Equal(t, want, j.FLOPsPerToken(), recompute)
	}
}

// written lists the persistent tensors that a program writes.
func written(p *backend.Program) (list []*backend.Tensor) {
	for _, n := range p.Nodes() {
		for _, o := range n.Operands() {
			root := o.Tensor.Root()
			if o.Access != backend.In && (root.Class == backend.Param || root.Class == backend.State) {
				list = append(list, o.Tensor)
			}
		}
	}
	return list
}

// Micro-batches write no parameter and no state, so that a step can be repeated.
func TestMicroBatchesChangeNoState(t *testing.T) {
	for _, name := range recipe.Names() {
		for _, accumulate := range []int{1, 3} {
			c := small(t, name)
			c.Train.Accumulate, c.Train.Ranks = accumulate, 2
			if r, err := recipe.Lookup(name); err == nil && !r.Reduce.FP32() {
				c.Train.ZeroStage = 1
			}
			j, err := NewJob(c, specOf(t, "emu"))
			require.NoError(t, err, name)
			require.Len(t, j.Micro, accumulate)
			for v, p := range j.Micro {
				require.Empty(t, written(p), "%s %s", name, v)
			}
			require.NotEmpty(t, written(j.Update), name)
		}
	}
}
