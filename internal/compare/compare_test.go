package compare

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	_ "octet/backend/emu"
	"octet/data"
	"octet/fp8"
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

// AMX changes the arithmetic of GEMMs and attention alone. In mode Forced no other op differs;
// in mode Free, ops that read their results differ too.
func TestAMXChangesGEMMsAndAttention(t *testing.T) {
	count := func(list []Diff) (gemms, attention, others int) {
		for _, d := range list {
			if d.Equal() {
				require.Zero(t, d.Error)
				continue
			}
			require.GreaterOrEqual(t, d.First, 0)
			switch d.Node.Op.(type) {
			case *backend.MatMul:
				gemms++
			case *backend.Attention, *backend.AttentionGrad:
				attention++
			default:
				others++
			}
		}
		return gemms, attention, others
	}
	forced, attention, others := count(run(t, options("emu", "emu:amx"), Forced))
	require.NotZero(t, forced)
	require.NotZero(t, attention)
	require.Zero(t, others)
	free, _, others := count(run(t, options("emu", "emu:amx"), Free))
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

// breaking is a device whose third run fails after its first node.
type breaking struct {
	backend.Backend
	runs int
}

type breakingExecutable struct {
	backend.Executable
	device *breaking
}

var errBroken = errors.New("broken")

func (d *breaking) Load(programs ...*backend.Program) ([]backend.Executable, error) {
	list, err := d.Backend.Load(programs...)
	for i, x := range list {
		list[i] = breakingExecutable{x, d}
	}
	return list, err
}

func (x breakingExecutable) RunObserved(ctx context.Context, see backend.Observer) error {
	x.device.runs++
	return x.Executable.RunObserved(ctx, func(n *backend.Node, m backend.Memory) error {
		if err := see(n, m); err != nil || x.device.runs < 3 {
			return err
		}
		return errBroken
	})
}

// Run returns the error of the backend that failed, not that of the other one, which has
// no node left to compare with.
func TestRunReturnsTheCause(t *testing.T) {
	emu, _, err := backend.Find("emu")
	require.NoError(t, err)
	emu.Name = "breaking"
	open := emu.Open
	emu.Open = func(device string, o backend.Options) (backend.Backend, error) {
		b, err := open(device, o)
		if err != nil {
			return nil, err
		}
		return &breaking{Backend: b}, nil
	}
	t.Cleanup(backend.Register(emu))
	for _, o := range []Options{options("breaking", "emu"), options("emu", "breaking")} {
		seen := 0
		require.ErrorIs(t, Run(t.Context(), o, Free, func(Diff) { seen++ }), errBroken)
		require.Positive(t, seen)
	}
}

// Both backends lower concurrently, and may declare variables.
func TestEachDeclaresVariables(t *testing.T) {
	emu, _, err := backend.Find("emu")
	require.NoError(t, err)
	emu.Name = "declaring"
	lower, declared := emu.Lower, make(chan *backend.Vars, 2)
	emu.Lower = func(s backend.Spec, programs []*backend.Program) ([]*backend.Program, error) {
		vars := programs[0].Vars()
		vars.Tensor(backend.Stash, "copy", fp8.F32, 1)
		declared <- vars
		return lower(s, programs)
	}
	spec := emu.Spec
	emu.Spec = func(device string) (backend.Spec, error) {
		s, err := spec(device)
		s.Backend = emu.Name
		return s, err
	}
	open := emu.Open
	emu.Open = func(device string, o backend.Options) (backend.Backend, error) {
		b, err := open(device, o)
		if err != nil {
			return nil, err
		}
		return declaring{b}, nil
	}
	t.Cleanup(backend.Register(emu))
	for _, d := range run(t, options("declaring", "declaring"), Free) {
		require.True(t, d.Equal(), d.Tensor.Name)
	}
	require.NotSame(t, <-declared, <-declared)
}

type declaring struct{ backend.Backend }

func (d declaring) Spec() backend.Spec {
	s := d.Backend.Spec()
	s.Backend = "declaring"
	return s
}

// Two devices are compared on programs that both can run.
func TestCommon(t *testing.T) {
	emu, err := backend.SpecOf("emu")
	require.NoError(t, err)
	gaudi, err := backend.SpecOf("emu:gaudi2")
	require.NoError(t, err)
	require.Equal(t, emu, common(emu, emu))
	coarse := emu
	coarse.Pairs = fp8.PerTensor([2]fp8.DType{fp8.E4M3, fp8.E4M3}, [2]fp8.DType{fp8.E4M3IEEE, fp8.E4M3IEEE})
	require.Equal(t, coarse.Pairs, common(emu, coarse).Pairs)
	require.Equal(t, coarse.Pairs, common(coarse, emu).Pairs)
	require.Equal(t, coarse.Pairs[1:], common(coarse, gaudi).Pairs)
	require.Equal(t, fp8.E4M3IEEE, common(gaudi, coarse).E4M3)
	for _, s := range []backend.Spec{common(emu, gaudi), common(gaudi, emu)} {
		require.Equal(t, gaudi.E4M3, s.E4M3)
		require.ElementsMatch(t, gaudi.Pairs, s.Pairs)
	}
}

// Programs for gaudi2 run on both backends, and only GEMMs differ.
func TestDeviceModelChangesOnlyGEMMs(t *testing.T) {
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
