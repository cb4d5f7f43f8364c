package compare

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	_ "octet/backend/emu"
	"octet/data"
	"octet/train"
)

func options(a, b string) Options {
	c := train.Default()
	c.Model.Layers, c.Model.Dim, c.Model.Heads, c.Model.KVHeads, c.Model.FFN = 2, 32, 2, 2, 48
	c.Data.Seq, c.Train.MicroBatch, c.Train.Steps = 32, 2, 10
	text := data.Text(strings.Repeat("to be or not to be, that is the question. ", 100))
	return Options{Config: c, Corpus: &data.Corpus{Train: text}, A: a, B: b, Threads: 1, Steps: 2}
}

func run(t *testing.T, o Options, mode Mode) (list []Diff) {
	require.NoError(t, Run(t.Context(), o, mode, func(d Diff) { list = append(list, d) }))
	return list
}

func TestABackendEqualsItself(t *testing.T) {
	for _, mode := range []Mode{Forced, Free} {
		list := run(t, options("emu", "emu"), mode)
		require.Greater(t, len(list), 200)
		programs := map[string]bool{}
		for _, d := range list {
			require.True(t, d.Equal(), d.Tensor.Name)
			programs[d.Program] = true
		}
		require.True(t, programs["update"] && programs["micro.first.last"], programs)
		require.Equal(t, 2, list[len(list)-1].Step)
	}
}

// The arithmetic of AMX is that of products alone. Forced, nothing else differs;
// free, what reads a product that differs does too.
func TestProductsOfAMX(t *testing.T) {
	count := func(list []Diff) (products, others int) {
		for _, d := range list {
			if d.Equal() {
				require.Zero(t, d.Error)
				continue
			}
			require.GreaterOrEqual(t, d.First, 0)
			if _, ok := d.Node.Op.(*backend.MatMul); ok {
				products++
			} else {
				others++
			}
		}
		return products, others
	}
	forced, others := count(run(t, options("emu", "emu:amx"), Forced))
	require.NotZero(t, forced)
	require.Zero(t, others)
	free, others := count(run(t, options("emu", "emu:amx"), Free))
	require.NotZero(t, others)
	require.Greater(t, free, forced)
}

func TestUnknownBackendsAndConfigurations(t *testing.T) {
	see := func(Diff) {}
	require.ErrorContains(t, Run(t.Context(), options("emu", "nowhere"), Free, see), `unknown backend "nowhere"`)
	require.ErrorContains(t, Run(t.Context(), options("emu:nowhere", "emu"), Free, see), "nowhere")
	o := options("emu", "emu")
	o.Config.Recipe = "fp9"
	require.ErrorContains(t, Run(t.Context(), o, Free, see), "fp9")
}

// Two devices are compared by what both have.
func TestCommon(t *testing.T) {
	emu, err := backend.SpecOf("emu")
	require.NoError(t, err)
	gaudi, err := backend.SpecOf("emu:gaudi2")
	require.NoError(t, err)
	require.Equal(t, emu, common(emu, emu))
	coarse := emu
	coarse.BlockScales = false
	require.False(t, common(emu, coarse).BlockScales)
	require.False(t, common(coarse, emu).BlockScales)
	for _, s := range []backend.Spec{common(emu, gaudi), common(gaudi, emu)} {
		require.Equal(t, gaudi.E4M3, s.E4M3)
		require.ElementsMatch(t, gaudi.Pairs, s.Pairs)
	}
}

// What gaudi2 would run runs on both, and differs in products alone.
func TestProductsOfADevice(t *testing.T) {
	for _, o := range []Options{options("emu", "emu:gaudi2"), options("emu:gaudi2", "emu")} {
		differ := 0
		for _, d := range run(t, o, Forced) {
			if d.Equal() {
				continue
			}
			differ++
			op, ok := d.Node.Op.(*backend.MatMul)
			require.True(t, ok, d.Tensor.Name)
			require.Equal(t, op.A.DType, op.B.DType)
		}
		require.Positive(t, differ)
	}
}
