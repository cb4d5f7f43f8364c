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
	require.Equal(t, 2, strings.Count(out.String(), "✓ losses differ by at most 0 nats\n"), out.String())
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

// Compare reports a device with wrong results, for every recipe.
func TestCompareReportsWrongResults(t *testing.T) {
	emu, _, err := backend.Find("emu")
	require.NoError(t, err)
	d := emu
	d.Name, d.Priority = "frozen", -1
	d.Open = func(device string, o backend.Options) (backend.Backend, error) {
		b, err := emu.Open(device, o)
		return frozen{b}, err
	}
	t.Cleanup(backend.Register(d))
	var out strings.Builder
	require.False(t, Compare(t.Context(), &out, "frozen"))
	require.Contains(t, out.String(), "✗ 50 steps of bf16: step 2: the loss is")
	require.Contains(t, out.String(), "✗ 50 steps of fp8-smooth: step 2: the loss is")
}

func TestModelOf(t *testing.T) {
	for arithmetic, want := range map[string]string{
		"gaudi2+synapse1.24.0": "emu:gaudi2", "gaudi3+synapse": "emu:gaudi3", "h100+avx512": "emu:h100", "avx512": "emu",
	} {
		require.Equal(t, want, modelOf(backend.Spec{Arithmetic: arithmetic}), arithmetic)
	}
}

// Programs contains every op of training and generation, for a device that supports all.
func TestProgramsContainEveryOp(t *testing.T) {
	s, err := backend.SpecOf("emu")
	require.NoError(t, err)
	list, err := Programs(s)
	require.NoError(t, err)
	found := map[string]bool{}
	for _, p := range list {
		for _, n := range p.Nodes() {
			found[reflect.TypeOf(n.Op).Elem().Name()] = true
		}
	}
	for _, name := range []string{
		"Attention", "AttentionGrad", "AdamW", "CastHealth", "RowCosine", "SwiGLU", "SwiGLUAmax", "Activation",
		"ActivationGrad", "Embed", "EmbedGrad", "RMSNorm", "RMSNormGrad", "Rope", "MatMul", "Quantize", "UpdateScale", "CacheWrite", "CrossEntropy", "SmoothScale", "PushHistory",
	} {
		require.Contains(t, found, name)
	}
}
