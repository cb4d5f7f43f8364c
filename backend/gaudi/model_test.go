package gaudi

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/recipe"
	"octet/train"
)

// lowered is the programs of a training run, lowered and cut.
func lowered(t *testing.T, model string, c train.Config) (backend.Spec, *cutter, []*schedule) {
	t.Helper()
	s := specOf(t, model)
	j, err := train.NewJob(c, s)
	require.NoError(t, err)
	programs, err := j.Lowered(backend.Driver{Lower: lower}, s)
	require.NoError(t, err)
	cutter := newCutter(s, false, programs...)
	var list []*schedule
	for _, p := range programs {
		schedule, err := cutter.cut(p)
		require.NoError(t, err)
		list = append(list, schedule)
	}
	return s, cutter, list
}

// llama2 is the 7B model of LLaMA 2 with some of its layers.
func llama2(t *testing.T, recipe string, layers int) train.Config {
	t.Helper()
	c, err := train.Preset("llama2-7b")
	require.NoError(t, err)
	c.Recipe = recipe
	c.Model.Layers = layers
	c.Train.MicroBatch = 1
	return c
}

// Equal layers are compiled once: a model of 32 has as many units as one of 3.
// No tensor of it is larger than the device takes, which lowering would refuse.
func TestLayersOfAModelAreEqual(t *testing.T) {
	for model, layers := range map[string][2]int{"gaudi2": {3, 32}, "gaudi3": {2, 3}} {
		s, few, schedules := lowered(t, model, llama2(t, "fp8-smooth", layers[0]))
		for _, schedule := range schedules {
			checkSchedule(t, s, few, schedule)
		}
		_, many, _ := lowered(t, model, llama2(t, "fp8-smooth", layers[1]))
		require.Equal(t, len(few.units), len(many.units), model)
		for _, u := range many.units {
			require.Less(t, len(u.graph.Nodes), 700, u.name)
		}
	}
}

// Every recipe that the device has formats for is lowered, with every program of
// a run; what is not says so.
func TestRecipesAreLowered(t *testing.T) {
	for _, model := range []string{"gaudi2", "gaudi3"} {
		s := specOf(t, model)
		for _, name := range recipe.Names() {
			c := train.Default()
			c.Recipe, c.Model.Layers, c.Data.Seq = name, 1, 32
			j, err := train.NewJob(c, s)
			require.NoError(t, err)
			programs, err := j.Lowered(backend.Driver{Lower: lower}, s)
			r, _ := recipe.Lookup(name)
			if slices.ContainsFunc(r.Rows, func(row recipe.Row) bool { return row.Granularity > recipe.ByTensor }) {
				require.ErrorIs(t, err, backend.ErrUnsupported, name)
				require.ErrorContains(t, err, "scales by block", name)
				continue
			}
			require.NoError(t, err, name)
			again, err := lower(s, programs)
			require.NoError(t, err)
			for i, p := range programs {
				require.Len(t, again[i].Nodes(), len(p.Nodes()), "%s: what is lowered stays", name)
			}
		}
	}
}
