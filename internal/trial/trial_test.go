package trial

import (
	"context"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	_ "octet/backend/emu"
)

func TestCompare(t *testing.T) {
	var out strings.Builder
	require.True(t, Compare(t.Context(), &out, "emu"), out.String())
	require.Contains(t, out.String(), "50 steps of bf16: loss on emu, on emu\n")
	require.Equal(t, 2, strings.Count(out.String(), "✓ at most 0 nats apart\n"), out.String())
}

// frozen is a device that does not update weights.
type frozen struct{ backend.Backend }

func (f frozen) Spec() backend.Spec {
	s := f.Backend.Spec()
	s.Backend = "frozen"
	return s
}

func (f frozen) Load(programs ...*backend.Program) ([]backend.Executable, error) {
	list, err := f.Backend.Load(programs...)
	for i, p := range programs {
		if p.Name() == "update" && err == nil {
			list[i] = nothing{list[i]}
		}
	}
	return list, err
}

type nothing struct{ backend.Executable }

func (nothing) Run(context.Context) error { return nil }

// A device that computes something else is found out, and all recipes are tried.
func TestCompareFindsOut(t *testing.T) {
	emu, _, err := backend.Find("emu")
	require.NoError(t, err)
	d := emu
	d.Name, d.Rank = "frozen", -1
	d.Open = func(device string, o backend.Options) ([]backend.Backend, error) {
		list, err := emu.Open(device, o)
		for i := range list {
			list[i] = frozen{list[i]}
		}
		return list, err
	}
	backend.Register(d)
	var out strings.Builder
	require.False(t, Compare(t.Context(), &out, "frozen"))
	require.Contains(t, out.String(), "✗ 50 steps of bf16: step 2 has the loss")
	require.Contains(t, out.String(), "✗ 50 steps of fp8-smooth: step 2 has the loss")
}

func TestTwin(t *testing.T) {
	for arithmetic, want := range map[string]string{
		"gaudi2+synapse1.24.0": "emu:gaudi2", "gaudi3+synapse": "emu:gaudi3", "h100+avx512": "emu:h100", "avx512": "emu",
	} {
		require.Equal(t, want, twin(backend.Spec{Arithmetic: arithmetic}), arithmetic)
	}
}

// What a doctor has a device examine holds every op that a run or a generation may ask
// for, on a device that takes everything.
func TestProgramsHoldEveryOp(t *testing.T) {
	d, device, err := backend.Find("emu")
	require.NoError(t, err)
	s, err := d.Spec(device)
	require.NoError(t, err)
	list, err := Programs(d, s)
	require.NoError(t, err)
	held := map[string]bool{}
	for _, p := range list {
		for _, n := range p.Nodes() {
			held[reflect.TypeOf(n.Op).Elem().Name()] = true
		}
	}
	for _, name := range []string{
		"Attention", "AttentionGrad", "AdamW", "CastHealth", "RowCosine", "SwiGLU", "SwiGLUAmax", "Activation",
		"ActivationGrad", "Embed", "EmbedGrad", "RMSNorm", "RMSNormGrad", "Rope", "MatMul", "Quantize", "UpdateScale", "CacheWrite", "CrossEntropy", "SmoothScale", "PushHistory",
	} {
		require.Contains(t, held, name)
	}
}
