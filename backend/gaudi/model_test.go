package gaudi

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
	"octet/train"
)

// lowered returns the programs of a training run, lowered and cut.
func lowered(t *testing.T, model string, c train.Config) (backend.Spec, *cutter, []*schedule) {
	t.Helper()
	s := specOf(t, model)
	j, err := train.NewJob(c, s)
	require.NoError(t, err)
	programs, err := backend.Lower(s, j.Programs()...)
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

// preset returns an FP8 training config of a model with another number of layers.
func preset(t *testing.T, name string, layers int) train.Config {
	t.Helper()
	c, err := train.Preset(name)
	require.NoError(t, err)
	c.Model.Layers, c.Train.MicroBatch = layers, 1
	return c
}

// Equal layers are compiled once: LLaMA 2 with 32 layers has as many units as with 3.
// None of its tensors exceeds the device's limit, which lowering would refuse. The
// records of the tiny model are not aligned.
func TestLayersOfAModelAreEqual(t *testing.T) {
	for _, c := range []struct {
		model, preset string
		few, many     int
	}{{"gaudi2", "llama2-7b", 3, 32}, {"gaudi3", "llama2-7b", 3, 32}, {"gaudi3", "tiny", 3, 7}} {
		s, few, schedules := lowered(t, c.model, preset(t, c.preset, c.few))
		for _, schedule := range schedules {
			checkSchedule(t, s, few, schedule)
		}
		_, many, _ := lowered(t, c.model, preset(t, c.preset, c.many))
		require.Equal(t, len(few.units), len(many.units), c.preset)
		for _, u := range many.units {
			require.Less(t, len(u.graph.Nodes), 1000, u.name) // the largest unit measures every cast of a layer
		}
	}
}

// Every training recipe whose formats the device has is lowered, with every program of a
// run; other recipes return an error.
func TestRecipesAreLowered(t *testing.T) {
	for _, model := range []string{"gaudi2", "gaudi3"} {
		s := specOf(t, model)
		for _, name := range recipe.Names() {
			c := train.Default()
			c.Recipe, c.Model.Layers, c.Data.Seq = name, 1, 32
			if name == "nvfp4" {
				c.Model.Layers = 3 // the first and the last one are BF16
			}
			j, err := train.NewJob(c, s)
			r, _ := recipe.Lookup(name)
			if r.Compute == fp8.F16 || r.Optimizer.Block != 0 || slices.ContainsFunc(r.Rows, func(row recipe.Row) bool {
				masked := row.DType.Format().Container != row.DType
				return masked || row.Granularity != (recipe.Granularity{}) && row.Granularity != recipe.PerTensor
			}) {
				require.ErrorIs(t, err, backend.ErrUnsupported, name)
				require.ErrorContains(t, err, "unsupported by backend "+s.DeviceName()+": recipe "+name)
				continue
			}
			require.NoError(t, err, name)
			programs, err := backend.Lower(s, j.Programs()...)
			require.NoError(t, err, name)
			again, err := lower(s, programs)
			require.NoError(t, err)
			for i, p := range programs {
				require.Len(t, again[i].Nodes(), len(p.Nodes()), "%s: lowering is not idempotent", name)
			}
		}
	}
}

// A chunk of the head's tokens is large enough that its GEMMs hide the traffic of the weight gradient
// that each chunk reads and writes.
func TestHeadChunks(t *testing.T) {
	for model, want := range map[string]int{"gaudi2": 1024, "gaudi3": 2048} {
		s, err := spec(model)
		require.NoError(t, err)
		c, err := train.Preset("llama3-8b")
		require.NoError(t, err)
		c.Recipe, c.Model.Layers, c.Model.Dim, c.Model.Heads, c.Model.KVHeads, c.Model.FFN = "bf16", 1, 128, 4, 4, 256
		c.Data.Seq, c.Train.MicroBatch = 2048, 2
		j, err := train.NewJob(c, s)
		require.NoError(t, err)
		rows := 0
		for _, n := range j.Micro[train.Variant{First: true, Last: true}].Nodes() {
			if o, ok := n.Op.(*backend.CrossEntropy); ok {
				require.Equal(t, want, o.Logits.Rows(), model)
				rows += o.Logits.Rows()
			}
		}
		require.Equal(t, 4096, rows)
	}
}
