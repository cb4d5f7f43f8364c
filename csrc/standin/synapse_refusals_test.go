//go:build gaudi && cgo && linux

package standin

import (
	"encoding/binary"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// The refusals that other tests do not cover, with their status.

const (
	outOfHostMemory = 3

	invalidHandle = 77
)

type refusal struct {
	call string
	args []uint64
	want int
}

func (s *synapse) refuses(list []refusal) {
	s.t.Helper()
	for _, r := range list {
		require.Equal(s.t, r.want, s.Call(r.call, r.args...), "%s%v", r.call, r.args)
	}
}

func TestCallsWithoutADevice(t *testing.T) {
	s := load(t)
	s.do("synInitialize")
	_, p := s.memory(256)
	s.refuses([]refusal{
		{"synDeviceGetName", []uint64{p, 64, 0}, noDeviceFound},
		{"synDeviceGetPCIBusId", []uint64{p, 64, 0}, noDeviceFound},
		{"synDeviceGetInfoV2", []uint64{0, p}, noDeviceFound},
		{"synDeviceGetAttribute", []uint64{p, p, 1, 0}, noDeviceFound},
		{"synDeviceGetMemoryInfo", []uint64{0, p, p}, noDeviceFound},
		{"synDeviceFree", []uint64{0, p, 0}, noDeviceFound},
		{"synHostMalloc", []uint64{0, 8, 0, p}, noDeviceFound},
		{"synHostFree", []uint64{0, p, 0}, noDeviceFound},
		{"synStreamCreateGeneric", []uint64{p, 0, 0}, noDeviceFound},
		{"synEventCreate", []uint64{p, 0, 0}, noDeviceFound},
		{"synDeviceAcquireByModuleId", []uint64{0, 0}, invalidArgument},
		{"synDeviceAcquireByDeviceType", []uint64{0, gaudi2}, invalidArgument},
	})
}

func TestArgumentsOfTheDevice(t *testing.T) {
	s := open(t, gaudi2)
	b, p := s.memory(256)
	binary.LittleEndian.PutUint32(b, 99) // unknown attribute
	s.refuses([]refusal{
		{"synDriverGetVersion", []uint64{0, 256}, invalidArgument},
		{"synDriverGetVersion", []uint64{p, 0}, invalidArgument},
		{"synStatusGetBriefDescription", []uint64{0, 0, 64}, invalidArgument},
		{"synStatusGetBriefDescription", []uint64{0, p, 0}, invalidArgument},
		{"synDeviceGetAttribute", []uint64{p + 8, p, 1, 0}, invalidArgument},
		{"synDeviceMalloc", []uint64{0, 16, 0, 1, p}, invalidArgument}, // unknown flags
		{"synDeviceMalloc", []uint64{0, 16, 0, 0, 0}, invalidArgument},
		{"synHostMalloc", []uint64{0, 0, 0, p}, invalidArgument},
		{"synHostMalloc", []uint64{0, 8, 1, p}, invalidArgument},
		{"synHostMalloc", []uint64{0, 8, 0, 0}, invalidArgument},
		{"synHostMalloc", []uint64{0, 1 << 60, 0, p}, outOfHostMemory},
		{"synStreamCreateGeneric", []uint64{0, 0, 0}, invalidArgument},
		{"synStreamCreateGeneric", []uint64{p, 0, 1}, invalidArgument},
		{"synStreamDestroy", []uint64{invalidHandle}, invalidArgument},
		{"synEventCreate", []uint64{0, 0, 0}, invalidArgument},
		{"synEventCreate", []uint64{p, 0, 2}, invalidArgument},
		{"synEventSynchronize", []uint64{invalidHandle}, invalidEvent},
		{"synEventElapsedTime", []uint64{p, invalidHandle, invalidHandle}, invalidEvent},
	})
}

// An event that was recorded again has no time until the stream reaches it again.
func TestElapsedTimeOfAPendingEvent(t *testing.T) {
	s := open(t, gaudi2)
	_, p := s.memory(8)
	event := s.get("synEventCreate", 0, 1)
	s.do("synEventRecord", event, s.stream)
	s.do("synEventSynchronize", event)
	s.do("synEventRecord", event, s.stream)
	require.Equal(t, busy, s.Call("synEventElapsedTime", p, event, event))
}

func TestHandlesOfGraphs(t *testing.T) {
	s := open(t, gaudi2)
	g := s.graph(gaudi2)
	x := g.temp(typeF32, 4)
	_, p := s.memory(256)
	name := s.text("name")
	s.refuses([]refusal{
		{"synGraphCreate", []uint64{0, gaudi2}, invalidArgument},
		{"synSectionCreate", []uint64{p, 0, invalidHandle}, fail},
		{"synSectionCreate", []uint64{0, 0, g.handle}, invalidArgument},
		{"synSectionCreate", []uint64{p, 1, g.handle}, invalidArgument},
		{"synSectionSetPersistent", []uint64{invalidHandle, 1}, invalidArgument},
		{"synTensorSetGeometry", []uint64{invalidHandle, g.geometry(4), 1}, invalidArgument},
		{"synTensorSetGeometry", []uint64{x.handle, 0, 1}, invalidArgument},
		{"synTensorSetGeometry", []uint64{x.handle, g.geometry(4), 3}, invalidArgument},
		{"synTensorAssignToSection", []uint64{x.handle, invalidHandle, 0}, invalidArgument},
		{"synTensorSetHostPtr", []uint64{x.handle, 0, 16, typeF32, 1}, invalidArgument},
		{"synNodeCreateWithId", []uint64{invalidHandle, 0, 0, 0, 0, 0, 0, name, name, 0, 0, 0}, fail},
		{"synNodeCreateWithId", []uint64{g.handle, 0, 0, 0, 0, 0, 8, name, name, 0, 0, 0}, invalidArgument}, // 8 bytes of parameters at a null pointer
		{"synNodeDependencySet", []uint64{invalidHandle, p, p, 1, 1}, fail},
		{"synNodeDependencySet", []uint64{g.handle, 0, p, 1, 1}, invalidArgument},
		{"synNodeSetDeterministic", []uint64{invalidHandle, 1, 1}, fail},
		{"synNodeSetDeterministic", []uint64{g.handle, 1, 1}, invalidArgument},
		{"synGraphCompile", []uint64{p, invalidHandle, name, 0}, fail},
		{"synGraphCompile", []uint64{0, g.handle, name, 0}, invalidArgument},
		{"synRecipeDestroy", []uint64{invalidHandle}, invalidArgument},
		{"synRecipeSerialize", []uint64{invalidHandle, name}, invalidArgument},
		{"synRecipeDeSerialize", []uint64{0, name}, invalidArgument},
		{"synRecipeDeSerialize", []uint64{p, s.text("/no/such/file")}, fail},
		{"synWorkspaceGetSize", []uint64{p, invalidHandle}, invalidArgument},
		{"synTensorRetrieveIds", []uint64{invalidHandle, p, p, 1}, invalidArgument},
		{"synLaunch", []uint64{s.stream, 0, 0, 0, invalidHandle, 0}, invalidArgument},
	})
}

// Constants and tensors of non-persistent sections are invalid for some operands.
func TestConstantsAndSections(t *testing.T) {
	s := open(t, gaudi2)
	g := s.graph(gaudi2)
	_, data := s.memory(16)
	constant := func() *tensor {
		x := g.temp(typeF32, 4)
		g.do("synTensorSetHostPtr", x.handle, data, 16, typeF32, 1)
		return x
	}
	x := constant()
	require.Equal(t, objectInitialized, g.Call("synTensorSetHostPtr", x.handle, data, 16, typeF32, 1), "already has contents")

	written, placed, lost := constant(), constant(), g.temp(typeF32, 4)
	g.do("synTensorAssignToSection", placed.handle, g.section(), 0)
	g.do("synTensorAssignToSection", lost.handle, g.get("synSectionCreate", 0, g.handle), 0)
	for what, c := range map[string]struct{ in, out *tensor }{
		"a constant as an output":  {x, written},
		"a constant in a section":  {placed, g.temp(typeF32, 4)},
		"a non-persistent section": {lost, g.temp(typeF32, 4)},
	} {
		status, _ := g.node("abs_fwd_f32", nil, []*tensor{c.out}, []*tensor{c.in})
		require.Equal(t, invalidArgument, status, what)
	}
}

// A launch that runs after its recipe was destroyed loses the device.
func TestLaunchAfterItsRecipe(t *testing.T) {
	s := open(t, gaudi2)
	g := identity(s)
	status, recipe := g.compile()
	require.Equal(t, success, status)
	g.place()
	_, list, n := g.launchList(recipe)
	s.do("synLaunch", s.stream, list, uint64(n), 0, recipe, 0)
	s.do("synRecipeDestroy", recipe)
	require.Equal(t, fail, s.Call("synStreamSynchronize", s.stream))
	require.Equal(t, terminated, s.Call("synStreamSynchronize", s.stream))
}

// complaint returns the stand-in's stderr during do.
func complaint(t *testing.T, do func()) string {
	file, err := os.CreateTemp(t.TempDir(), "stderr")
	require.NoError(t, err)
	defer file.Close()
	old, err := syscall.Dup(syscall.Stderr)
	require.NoError(t, err)
	require.NoError(t, syscall.Dup3(int(file.Fd()), syscall.Stderr, 0))
	do()
	require.NoError(t, syscall.Dup3(old, syscall.Stderr, 0))
	require.NoError(t, syscall.Close(old))
	text, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	return string(text)
}

// Every mismatch of operands has the status synFail, so the test checks the reasons.
func TestMismatchedOperands(t *testing.T) {
	s := open(t, gaudi2)
	g := s.graph(gaudi2)
	f, wide, ints := g.temp(typeF32, 4), g.temp(typeF32, 4, 2), g.temp(typeI32, 3)
	codes, codes2, amax := g.temp(typeE4M3, 4), g.temp(typeE5M2, 4), g.temp(typeF32, 1)
	out := func(typ uint32, sizes ...uint64) *tensor { return g.temp(typ, sizes...) }
	le := func(words ...uint32) (b []byte) {
		for _, w := range words {
			b = binary.LittleEndian.AppendUint32(b, w)
		}
		return b
	}
	for _, c := range []struct {
		guid    string
		params  []byte
		out, in []*tensor
		reason  string
	}{
		{"cast_f32_to_bf16", nil, []*tensor{out(typeBF16, 5)}, []*tensor{f}, "the sizes of output and input differ"},
		{"convert_to_fp8_f32", le(0), []*tensor{codes, amax}, []*tensor{f, g.temp(typeF32, 4)}, "a scale must have one element"},
		{"convert_to_fp8_f32", le(0), []*tensor{out(typeE4M3, 5), amax}, []*tensor{f, amax}, "the sizes of output and input differ"},
		{"convert_to_fp8_hybrid_f32", le(0), []*tensor{codes2, out(typeE4M3, 5), amax}, []*tensor{f, amax, amax}, "the sizes of output and input differ"},
		{"convert_to_fp8_f32", le(0), []*tensor{codes, out(typeF32, 2)}, []*tensor{f, amax}, "amax must have one element"},
		{"convert_from_fp8_f32", nil, []*tensor{out(typeF32, 5)}, []*tensor{codes, amax}, "the sizes of output and input differ"},
		{"concat", le(1), []*tensor{out(typeF32, 4, 3)}, []*tensor{wide, g.temp(typeF32, 3, 1)}, "sizes outside the axis differ"},
		{"gather_fwd_f32", le(0), []*tensor{out(typeF32, 5, 2)}, []*tensor{wide, ints}, "the sizes of the output and the gathered data differ"},
		{"gather_fwd_f32", le(0), []*tensor{out(typeF32, 5)}, []*tensor{wide, ints}, "the output must have the data's dimensions"},
		{"reduce_sum_multi_dim_fwd_f32", le(1, 1), []*tensor{out(typeF32, 2, 2)}, []*tensor{wide}, "the output sizes must be the input's without the reduced dimensions"},
		{"reshape", nil, []*tensor{out(typeF32, 3)}, []*tensor{f}, "differ in the number of elements"},
		{"embedding_dense_pt_bwd_f32", le(8, 0, 0), []*tensor{out(typeF32, 4, 8)}, []*tensor{wide, ints}, "the gradient must have one row per index"},
		{"embedding_dense_pt_bwd_f32", le(8, 0, 0), []*tensor{out(typeF32, 4, 9)}, []*tensor{g.temp(typeF32, 4, 3), ints}, "the sizes of the output and the table differ"},
		{"embedding_dense_pt_bwd_f32", le(8, 0, 1), []*tensor{out(typeF32, 4, 8)}, []*tensor{g.temp(typeF32, 4, 3), ints}, "by frequency"},
	} {
		why := complaint(t, func() {
			status, _ := g.node(c.guid, c.params, c.out, c.in)
			require.Equal(t, fail, status, c.reason)
		})
		require.Contains(t, why, c.reason, c.guid)
	}
}

// Refusals of HCCL that need only one rank.
func TestArgumentsOfHCCL(t *testing.T) {
	ranks(t, 1, func(r *rank) {
		p := r.floats(1, 2, 3, 4)
		for _, c := range []struct{ got, want int }{
			{r.Call("hcclCommDestroy", invalidHandle), hcclInvalidArgument},
			{r.Call("hcclBroadcast", p, p, 4, hcclF32, 1, r.comm, r.stream), hcclInvalidArgument}, // rank 1 does not exist
			{r.Call("hcclAllReduce", p, p, 0, hcclF32, sumOp, r.comm, r.stream), hcclInvalidArgument},
		} {
			if c.got != c.want {
				t.Errorf("result %d, want %d", c.got, c.want)
			}
		}
	})
}
