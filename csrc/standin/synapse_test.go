//go:build gaudi && cgo && linux

package standin

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/csrc/standin/direct"
	"octet/fp8"
)

// Values of synapse_common_types.h.
const (
	gaudi2, gaudi3 = 4, 5

	typeI8, typeBF16, typeF32, typeI32, typeE4M3, typeE5M2 = 1, 2, 4, 16, 8192, 16384

	hostToDevice, deviceToHost, deviceToDevice = 0, 1, 2
)

const (
	success             = 0
	invalidArgument     = 1
	outOfDeviceMemory   = 4
	objectInitialized   = 5
	noDeviceFound       = 8
	deviceTypeMismatch  = 9
	unsupported         = 18
	alreadyAcquired     = 20
	nameUsed            = 21
	busy                = 22
	fail                = 26
	uninitialized       = 28
	alreadyInitialized  = 29
	sectionValidation   = 30
	terminated          = 31
	invalidEvent        = 33
	mappingNotFound     = 34
	invalidTensor       = 39
	failedToCollectTime = 41
)

// synapse is the stand-in of one test.
type synapse struct {
	*direct.Library
	t      testing.TB
	stream uint64
}

func load(t testing.TB) *synapse {
	lib, err := direct.Open(Build(t, "libsynapse"))
	require.NoError(t, err)
	return &synapse{Library: lib, t: t}
}

// memory allocates C memory for the duration of the test.
func (s *synapse) memory(bytes int) ([]byte, uint64) {
	b, p := direct.Memory(max(bytes, 1))
	s.t.Cleanup(func() { direct.Free(p) })
	return b[:bytes], p
}

func (s *synapse) text(text string) uint64 {
	b, p := s.memory(len(text) + 1)
	copy(b, text)
	return p
}

// get calls a function that writes its result to the address in its first argument.
func (s *synapse) get(name string, args ...uint64) uint64 {
	b, p := s.memory(8)
	require.Equal(s.t, success, s.Call(name, append([]uint64{p}, args...)...), name)
	return binary.LittleEndian.Uint64(b)
}

func (s *synapse) do(name string, args ...uint64) {
	s.t.Helper()
	require.Equal(s.t, success, s.Call(name, args...), name)
}

// open loads and initializes a library with one device of a model and a stream.
func open(t testing.TB, model int) *synapse {
	t.Setenv("STANDIN_GAUDI2", fmt.Sprint(gaudi3-model))
	t.Setenv("STANDIN_GAUDI3", fmt.Sprint(model-gaudi2))
	s := load(t)
	s.do("synInitialize")
	require.Zero(t, uint32(s.get("synDeviceAcquireByModuleId", 0)))
	s.stream = s.get("synStreamCreateGeneric", 0, 0)
	return s
}

func (s *synapse) malloc(bytes int) uint64 {
	b, p := s.memory(8)
	s.do("synDeviceMalloc", 0, uint64(bytes), 0, 0, p)
	return binary.LittleEndian.Uint64(b)
}

// host allocates host memory that is mapped for the device.
func (s *synapse) host(bytes int) ([]byte, uint64) {
	b, out := s.memory(8)
	s.do("synHostMalloc", 0, uint64(bytes), 0, out)
	p := binary.LittleEndian.Uint64(b)
	return direct.View(p, bytes), p
}

func (s *synapse) write(to uint64, data []byte) {
	b, p := s.host(len(data))
	copy(b, data)
	s.do("synMemCopyAsync", s.stream, p, uint64(len(data)), to, hostToDevice)
	s.do("synStreamSynchronize", s.stream)
	s.do("synHostFree", 0, p, 0)
}

func (s *synapse) read(from uint64, bytes int) []byte {
	b, p := s.host(bytes)
	defer s.do("synHostFree", 0, p, 0)
	s.do("synMemCopyAsync", s.stream, from, uint64(bytes), p, deviceToHost)
	s.do("synStreamSynchronize", s.stream)
	return slices.Clone(b)
}

// graph is a graph under construction. Tensors with data, or that a test reads, are
// persistent, each in its own section.
type graph struct {
	*synapse
	handle  uint64
	tensors []*tensor
	nodes   int // created, failed ones included
}

type tensor struct {
	handle  uint64
	name    string
	typ     uint32
	sizes   []uint64
	data    []byte // initial contents, or nil
	section uint64 // 0: in the workspace
	address uint64
}

func (s *synapse) graph(model int) *graph {
	return &graph{synapse: s, handle: s.get("synGraphCreate", uint64(model))}
}

var typeSizes = map[uint32]int{typeI8: 1, typeBF16: 2, typeF32: 4, typeI32: 4, typeE4M3: 1, typeE5M2: 1}

func (x *tensor) bytes() int {
	n := typeSizes[x.typ]
	for _, size := range x.sizes {
		n *= int(size)
	}
	return n
}

func (s *synapse) geometry(sizes ...uint64) uint64 {
	b, p := s.memory(208)
	for i, size := range sizes {
		binary.LittleEndian.PutUint64(b[8*i:], size)
	}
	binary.LittleEndian.PutUint32(b[200:], uint32(len(sizes)))
	return p
}

// bare creates a tensor without sizes and type.
func (g *graph) bare() *tensor {
	x := &tensor{name: fmt.Sprintf("t%d", len(g.tensors))}
	x.handle = g.get("synTensorHandleCreate", g.handle, 0, g.text(x.name))
	g.tensors = append(g.tensors, x)
	return x
}

// temp creates a tensor in the workspace.
func (g *graph) temp(typ uint32, sizes ...uint64) *tensor {
	x := g.bare()
	x.typ, x.sizes = typ, sizes
	g.do("synTensorSetGeometry", x.handle, g.geometry(sizes...), 1)
	g.do("synTensorSetDeviceDataType", x.handle, uint64(typ))
	return x
}

func (g *graph) section() uint64 {
	section := g.get("synSectionCreate", 0, g.handle)
	g.do("synSectionSetPersistent", section, 1)
	return section
}

// out creates a persistent tensor.
func (g *graph) out(typ uint32, sizes ...uint64) *tensor {
	x := g.temp(typ, sizes...)
	x.section = g.section()
	g.do("synTensorAssignToSection", x.handle, x.section, 0)
	return x
}

// in creates a persistent tensor with data.
func (g *graph) in(typ uint32, data []byte, sizes ...uint64) *tensor {
	x := g.out(typ, sizes...)
	require.Len(g.t, data, x.bytes())
	x.data = data
	return x
}

func (g *graph) floats(values []float32, sizes ...uint64) *tensor {
	return g.in(typeF32, f32Bytes(values), sizes...)
}

// node creates a node and returns the status and its id. Nil operands are omitted.
func (g *graph) node(guid string, params []byte, out, in []*tensor) (int, uint64) {
	list := func(operands []*tensor) uint64 {
		b, p := g.memory(8 * len(operands))
		for i, x := range operands {
			if x != nil {
				binary.LittleEndian.PutUint64(b[8*i:], x.handle)
			}
		}
		return p
	}
	b, p := g.memory(len(params))
	copy(b, params)
	if len(params) == 0 {
		p = 0
	}
	id, at := g.memory(8)
	g.nodes++
	status := g.Call("synNodeCreateWithId", g.handle, list(in), list(out), uint64(len(in)), uint64(len(out)), p, uint64(len(params)),
		g.text(guid), g.text(fmt.Sprintf("node %d.", g.nodes)), at, 0, 0)
	return status, binary.LittleEndian.Uint64(id)
}

func (g *graph) add(guid string, params []byte, out []*tensor, in ...*tensor) uint64 {
	g.t.Helper()
	status, id := g.node(guid, params, out, in)
	require.Equal(g.t, success, status, guid)
	return id
}

func (g *graph) after(first, second uint64) {
	b, p := g.memory(16)
	binary.LittleEndian.PutUint64(b, first)
	binary.LittleEndian.PutUint64(b[8:], second)
	g.do("synNodeDependencySet", g.handle, p, p+8, 1, 1)
}

func (g *graph) compile() (int, uint64) {
	b, p := g.memory(8)
	status := g.Call("synGraphCompile", p, g.handle, g.text("recipe"), 0)
	return status, binary.LittleEndian.Uint64(b)
}

// place allocates the persistent tensors and writes their data.
func (g *graph) place() {
	for _, x := range g.tensors {
		if x.section != 0 && x.address == 0 {
			x.address = g.malloc(x.bytes())
		}
		if x.data != nil {
			g.write(x.address, x.data)
		}
	}
}

const launchInfo = 232 // bytes of a synLaunchTensorInfo

// launchList returns the tensors of a launch, with their ids.
func (g *graph) launchList(recipe uint64) (list []byte, address uint64, n int) {
	var persistent []*tensor
	for _, x := range g.tensors {
		if x.section != 0 {
			persistent = append(persistent, x)
		}
	}
	list, address = g.memory(launchInfo * len(persistent))
	for i, x := range persistent {
		at := list[launchInfo*i:]
		binary.LittleEndian.PutUint64(at[8:], x.address)
		binary.LittleEndian.PutUint64(at[224:], g.id(recipe, x))
	}
	return list, address, len(persistent)
}

// id returns a recipe's id of a tensor.
func (g *graph) id(recipe uint64, x *tensor) uint64 {
	name, at := g.memory(8)
	binary.LittleEndian.PutUint64(name, g.text(x.name))
	b, out := g.memory(8)
	g.do("synTensorRetrieveIds", recipe, at, out, 1)
	return binary.LittleEndian.Uint64(b)
}

// workspace allocates a recipe's workspace; 0: it needs none.
func (g *graph) workspace(recipe uint64) uint64 {
	if bytes := g.get("synWorkspaceGetSize", recipe); bytes > 0 {
		return g.malloc(int(bytes))
	}
	return 0
}

// run compiles the graph, launches it once and waits.
func (g *graph) run() {
	g.t.Helper()
	status, recipe := g.compile()
	require.Equal(g.t, success, status, "synGraphCompile")
	g.place()
	_, list, n := g.launchList(recipe)
	g.do("synLaunch", g.stream, list, uint64(n), g.workspace(recipe), recipe, 0)
	g.do("synStreamSynchronize", g.stream)
}

func (g *graph) bytesOf(x *tensor) []byte { return g.read(x.address, x.bytes()) }

func (g *graph) floatsOf(x *tensor) []float32 { return floatsFrom(g.bytesOf(x), x.typ) }

// floatsFrom decodes F32 or BF16.
func floatsFrom(data []byte, typ uint32) (out []float32) {
	if typ == typeBF16 {
		for i := 0; i < len(data); i += 2 {
			out = append(out, fp8.BF16.Float32(uint32(binary.LittleEndian.Uint16(data[i:]))))
		}
		return out
	}
	for i := 0; i < len(data); i += 4 {
		out = append(out, math.Float32frombits(binary.LittleEndian.Uint32(data[i:])))
	}
	return out
}

func f32Bytes(values []float32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

func i32Bytes(values ...int32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return b
}

func bf16Bytes(values []float32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint16(b, uint16(fp8.BF16.Nearest(v, fp8.NonSaturating)))
	}
	return b
}
