//go:build gaudi && cgo && linux

package standin

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNodesLockTheirTensors(t *testing.T) {
	s := open(t, gaudi2)
	g := s.graph(gaudi2)
	x, y := g.temp(typeF32, 4), g.temp(typeF32, 4)
	status, _ := g.node("no_such_kernel_f32", nil, []*tensor{y}, []*tensor{x}) // a failed node locks, too
	require.Equal(t, fail, status)
	section := g.section()
	_, p := g.memory(64)
	for _, c := range []struct {
		name string
		args []uint64
	}{
		{"synTensorSetGeometry", []uint64{g.geometry(4), 1}},
		{"synTensorSetDeviceDataType", []uint64{typeF32}},
		{"synTensorAssignToSection", []uint64{section, 0}},
		{"synTensorSetHostPtr", []uint64{p, 16, typeF32, 1}},
	} {
		require.Equal(t, objectInitialized, g.Call(c.name, append([]uint64{x.handle}, c.args...)...), c.name)
	}
}

func TestTensorRules(t *testing.T) {
	s := open(t, gaudi2)
	g := s.graph(gaudi2)
	x := g.bare()
	_, p := g.memory(64)
	require.Equal(t, nameUsed, g.Call("synTensorHandleCreate", p, g.handle, 0, g.text("t0")))
	require.Equal(t, invalidArgument, g.Call("synTensorHandleCreate", p, g.handle, 2, g.text("dynamic")))
	require.Equal(t, fail, g.Call("synTensorHandleCreate", p, 77, 0, g.text("x")))
	require.Equal(t, invalidArgument, g.Call("synTensorHandleCreate", p, g.handle, 0, g.text(strings.Repeat("x", 1024))))
	require.Equal(t, invalidArgument, g.Call("synTensorSetGeometry", x.handle, g.geometry(1, 1, 1, 1, 1, 1), 1), "six dimensions")
	require.Equal(t, invalidArgument, g.Call("synTensorSetGeometry", x.handle, g.geometry(1, 0), 1))
	require.Equal(t, invalidArgument, g.Call("synTensorSetGeometry", x.handle, g.geometry(), 1))
	require.Equal(t, invalidArgument, g.Call("synTensorSetDeviceDataType", x.handle, 3))
	g.do("synTensorSetGeometry", x.handle, g.geometry(4, 2), 1)
	g.do("synTensorSetDeviceDataType", x.handle, typeF32)
	require.Equal(t, unsupported, g.Call("synTensorSetGeometry", x.handle, g.geometry(4, 1), 0), "dynamic sizes")
	require.Equal(t, invalidArgument, g.Call("synTensorSetHostPtr", x.handle, p, 28, typeF32, 1))
	require.Equal(t, invalidArgument, g.Call("synTensorSetHostPtr", x.handle, p, 32, typeI32, 1))
	g.do("synTensorSetHostPtr", x.handle, p, 32, typeF32, 1)
	y := g.temp(typeF32, 4)
	section := g.get("synSectionCreate", 0, g.handle)
	g.do("synTensorAssignToSection", y.handle, section, 0)
	require.Equal(t, objectInitialized, g.Call("synSectionSetPersistent", section, 1), "the section has a tensor")
	require.Equal(t, objectInitialized, g.Call("synTensorAssignToSection", y.handle, section, 0))
	other := s.graph(gaudi2)
	require.Equal(t, invalidArgument, other.Call("synTensorAssignToSection", other.temp(typeF32, 1).handle, section, 0))
	require.Equal(t, unsupported, s.Call("synGraphCreate", p, 2), "Gaudi 1")
	g.do("synGraphDestroy", g.handle)
	require.Equal(t, fail, g.Call("synGraphDestroy", g.handle))
	require.Equal(t, invalidArgument, g.Call("synTensorSetDeviceDataType", y.handle, typeF32), "destroyed with its graph")
}

func TestNodeRules(t *testing.T) {
	s := open(t, gaudi2)
	g := s.graph(gaudi2)
	x, y := g.temp(typeF32, 4), g.temp(typeF32, 4)
	list, at := g.memory(8)
	binary.LittleEndian.PutUint64(list, x.handle)
	create := func(in, out, ins, outs, guid uint64) int {
		return g.Call("synNodeCreateWithId", g.handle, in, out, ins, outs, 0, 0, guid, g.text("n"), 0, 0, 0)
	}
	require.Equal(t, invalidArgument, create(at, at, 1, 1, 0), "no guid")
	require.Equal(t, invalidArgument, create(0, at, 1, 1, g.text("abs_fwd_f32")), "no list")
	other := s.graph(gaudi2).temp(typeF32, 4)
	big := g.temp(typeE4M3, 1<<17, 1<<15+1)
	whole := g.temp(typeE4M3, 1<<17, 1<<15)
	unsized, untyped := g.bare(), g.bare()
	g.do("synTensorSetDeviceDataType", unsized.handle, typeF32)
	g.do("synTensorSetGeometry", untyped.handle, g.geometry(4), 1)
	bf16, wide := g.temp(typeBF16, 4), g.temp(typeF32, 4, 2)
	for _, c := range []struct {
		guid    string
		params  []byte
		out, in []*tensor
		want    int
	}{
		{"abs_fwd_f32", nil, []*tensor{y}, []*tensor{other}, invalidArgument}, // of another graph
		{"abs_fwd_f32", nil, []*tensor{y}, []*tensor{unsized}, invalidArgument},
		{"abs_fwd_f32", nil, []*tensor{y}, []*tensor{untyped}, invalidArgument},
		{"identity", nil, []*tensor{g.temp(typeE4M3, 1)}, []*tensor{big}, invalidArgument}, // more than 2^32 bytes
		{"identity", nil, []*tensor{g.temp(typeE4M3, 1<<17, 1<<15)}, []*tensor{whole}, success},
		{"abs_fwd_f64", nil, []*tensor{y}, []*tensor{x}, fail},
		{"abs_fwd", nil, []*tensor{y}, []*tensor{x}, fail},
		{"gemm_f32", nil, []*tensor{y}, []*tensor{x}, fail},
		{"cast_f32", nil, []*tensor{y}, []*tensor{x}, fail},
		{"div_fwd_i32", nil, []*tensor{y}, []*tensor{x, x}, fail},             // a known kernel with an unsupported type
		{"abs_fwd_f32", nil, []*tensor{y}, []*tensor{bf16}, fail},             // not the suffix's type
		{"abs_fwd_f32", nil, []*tensor{y}, []*tensor{nil}, fail},              // not optional
		{"abs_fwd_f32", nil, []*tensor{y}, []*tensor{x, x}, fail},             // too many
		{"add_fwd_f32", nil, []*tensor{y}, []*tensor{x}, fail},                // too few
		{"abs_fwd_f32", []byte{0, 0, 0, 0}, []*tensor{y}, []*tensor{x}, fail}, // it has no parameters
		{"transpose", make([]byte, 24), []*tensor{y}, []*tensor{x}, fail},     // the old structure
		{"reduce_sum_multi_dim_fwd_f32", make([]byte, 4), []*tensor{y}, []*tensor{x}, fail},
		{"abs_fwd_f32", nil, []*tensor{wide}, []*tensor{x}, fail}, // other sizes
		{"add_fwd_f32", nil, []*tensor{wide}, []*tensor{x, wide}, success},
		{"abs_fwd_f32", nil, []*tensor{wide}, []*tensor{x}, invalidArgument}, // it has a producer
	} {
		status, _ := g.node(c.guid, c.params, c.out, c.in)
		require.Equal(t, c.want, status, c.guid)
	}
	g.add("abs_fwd_f32", nil, []*tensor{y}, x)
	_, ids := g.memory(16)
	require.Equal(t, invalidArgument, g.Call("synNodeDependencySet", g.handle, ids, ids, 1, 1), "node 0")
}

func TestKernelLibrary(t *testing.T) {
	s := open(t, gaudi2)
	t.Setenv("STANDIN_KERNELS", "1")
	t.Setenv("GC_KERNEL_PATH", "")
	g := s.graph(gaudi2)
	status, _ := g.node("abs_fwd_f32", nil, []*tensor{g.temp(typeF32, 4)}, []*tensor{g.temp(typeF32, 4)})
	require.Equal(t, fail, status)
	g.add("identity", nil, []*tensor{g.temp(typeF32, 4)}, g.temp(typeF32, 4)) // the graph compiler's own
	t.Setenv("GC_KERNEL_PATH", "/usr/lib/habanalabs/libtpc_kernels.so")
	g.add("abs_fwd_f32", nil, []*tensor{g.temp(typeF32, 4)}, g.temp(typeF32, 4))
}

// inPlace returns a graph that updates x, of 4 floats, in place to x + x, and computes z =
// 2|x| from the old x. With ordered, a control edge orders the two.
func inPlace(s *synapse, ordered bool) (*graph, *tensor, *tensor) {
	g := s.graph(gaudi2)
	x := g.floats([]float32{1, -2, 3, -4}, 4)
	after := g.temp(typeF32, 4)
	g.do("synTensorAssignToSection", after.handle, x.section, 0)
	y, z := g.temp(typeF32, 4), g.out(typeF32, 4)
	second := g.add("add_fwd_f32", nil, []*tensor{after}, x, x)
	first := g.add("abs_fwd_f32", nil, []*tensor{y}, x)
	g.add("add_fwd_f32", nil, []*tensor{z}, y, y)
	if ordered {
		g.after(first, second)
	}
	after.section, after.address = x.section, 0
	return g, x, z
}

func TestSharedMemoryNeedsOrder(t *testing.T) {
	s := open(t, gaudi2)
	g, _, _ := inPlace(s, false)
	status, _ := g.compile()
	require.Equal(t, fail, status)
	for seed := range 20 {
		t.Setenv("STANDIN_SEED", fmt.Sprint(seed))
		g, x, z := inPlace(s, true)
		status, recipe := g.compile()
		require.Equal(t, success, status)
		x.address, z.address = g.malloc(16), g.malloc(16)
		for _, other := range g.tensors {
			if other.section == x.section {
				other.address = x.address
			}
		}
		g.place()
		_, list, n := g.launchList(recipe)
		g.do("synLaunch", s.stream, list, uint64(n), g.workspace(recipe), recipe, 0)
		require.Equal(t, []float32{2, -4, 6, -8}, g.floatsOf(x))
		require.Equal(t, []float32{2, 4, 6, 8}, g.floatsOf(z))
	}
}

// A node may write to its input only if its kernel is elementwise.
func TestInPlace(t *testing.T) {
	for _, c := range []struct {
		guid   string
		params []byte
		offset uint64
		want   int
	}{
		{"abs_fwd_f32", nil, 0, success},
		{"abs_fwd_f32", nil, 128, fail}, // partial overlap
		{"transpose", transposeParams(1, 0), 0, fail},
	} {
		s := open(t, gaudi2)
		g := s.graph(gaudi2)
		x, y := g.temp(typeF32, 32, 32), g.temp(typeF32, 32, 32)
		section := g.section()
		g.do("synTensorAssignToSection", x.handle, section, 0)
		g.do("synTensorAssignToSection", y.handle, section, c.offset)
		g.add(c.guid, c.params, []*tensor{y}, x)
		status, _ := g.compile()
		require.Equal(t, c.want, status, c)
	}
}

func TestCompileRules(t *testing.T) {
	s := open(t, gaudi2)
	compile := func(build func(g *graph)) int {
		g := s.graph(gaudi2)
		build(g)
		status, _ := g.compile()
		return status
	}
	require.Equal(t, fail, compile(func(*graph) {}), "empty")
	require.Equal(t, fail, compile(func(g *graph) {
		x, y, z := g.in(typeF32, make([]byte, 16), 4), g.out(typeF32, 4), g.out(typeF32, 4)
		first, second := g.add("abs_fwd_f32", nil, []*tensor{y}, x), g.add("sqrt_fwd_f32", nil, []*tensor{z}, y)
		g.after(second, first)
	}), "a cycle")
	require.Equal(t, fail, compile(func(g *graph) {
		g.add("abs_fwd_f32", nil, []*tensor{g.out(typeF32, 4)}, g.temp(typeF32, 4))
	}), "the input has no producer")
	require.Equal(t, fail, compile(func(g *graph) {
		x, y := g.temp(typeF32, 4), g.out(typeF32, 4)
		g.do("synTensorAssignToSection", x.handle, g.section(), 64)
		g.add("abs_fwd_f32", nil, []*tensor{y}, x)
	}), "not aligned in its section")
	t.Setenv("STANDIN_COMPILE_FAIL", "abs_fwd_f32")
	require.Equal(t, fail, compile(func(g *graph) {
		g.add("abs_fwd_f32", nil, []*tensor{g.out(typeF32, 4)}, g.floats([]float32{1, 2, 3, 4}, 4))
	}))
}

// Nodes without edges run in any order, which a recipe's file shows.
func TestOrderIsShuffled(t *testing.T) {
	s := open(t, gaudi2)
	path := filepath.Join(t.TempDir(), "recipe")
	orders := map[string]bool{}
	for seed := range 10 {
		t.Setenv("STANDIN_SEED", fmt.Sprint(seed))
		g := s.graph(gaudi2)
		x := g.floats([]float32{1}, 1)
		for range 20 {
			g.add("abs_fwd_f32", nil, []*tensor{g.out(typeF32, 1)}, x)
		}
		status, recipe := g.compile()
		require.Equal(t, success, status)
		s.do("synRecipeSerialize", recipe, s.text(path))
		code, err := os.ReadFile(path)
		require.NoError(t, err)
		names := regexp.MustCompile(`node \d+\.`).FindAllString(string(code), -1)
		require.Len(t, names, 20)
		orders[strings.Join(names, "")] = true
	}
	require.Len(t, orders, 10)
}

// A tensor's memory is reused after its last reader, not before.
func TestWorkspaceIsReused(t *testing.T) {
	s := open(t, gaudi2)
	const n = 256
	values := sequence(n)
	for seed := range 10 {
		t.Setenv("STANDIN_SEED", fmt.Sprint(seed))
		g := s.graph(gaudi2)
		x := g.floats(values, n)
		long, chain := g.temp(typeF32, n), g.temp(typeF32, n)
		g.add("abs_fwd_f32", nil, []*tensor{long}, x)
		g.add("abs_fwd_f32", nil, []*tensor{chain}, x)
		for range 10 {
			next := g.temp(typeF32, n)
			g.add("abs_fwd_f32", nil, []*tensor{next}, chain)
			chain = next
		}
		doubled, y := g.temp(typeF32, n), g.out(typeF32, n)
		g.add("add_fwd_f32", nil, []*tensor{doubled}, chain, chain)
		g.add("sub_fwd_f32", nil, []*tensor{y}, doubled, long)
		g.run()
		require.Equal(t, values, g.floatsOf(y))
		_, recipe := g.compile()
		require.LessOrEqual(t, g.get("synWorkspaceGetSize", recipe), uint64(3*4*n))
	}
}

// Launches.

func TestLaunchRules(t *testing.T) {
	s := open(t, gaudi2)
	g := s.graph(gaudi2)
	x, y, temp := g.floats([]float32{1, 2, 3, 4}, 4), g.out(typeF32, 4), g.temp(typeF32, 4)
	second := g.temp(typeF32, 4) // in y's section, after y
	g.do("synTensorAssignToSection", second.handle, y.section, 128)
	g.add("abs_fwd_f32", nil, []*tensor{temp}, x)
	g.add("add_fwd_f32", nil, []*tensor{y}, temp, temp)
	g.add("abs_fwd_f32", nil, []*tensor{second}, temp)
	status, recipe := g.compile()
	require.Equal(t, success, status)
	x.address, y.address = g.malloc(16), g.malloc(1024)
	second.section, second.address = y.section, y.address+128
	g.place()
	workspace := g.workspace(recipe)
	require.NotZero(t, workspace)

	launch := func(n int, workspace, flags uint64, change func(list []byte)) int {
		list, at, all := g.launchList(recipe)
		change(list)
		if n < 0 {
			n = all
		}
		return g.Call("synLaunch", s.stream, at, uint64(n), workspace, recipe, flags)
	}
	none := func([]byte) {}
	address := func(i int, p uint64) func([]byte) {
		return func(list []byte) { binary.LittleEndian.PutUint64(list[launchInfo*i+8:], p) }
	}
	require.Equal(t, success, launch(-1, workspace, 0, none))
	require.Equal(t, success, launch(-1, workspace, 0, address(1, 0)), "another tensor gives the section's address")
	require.Equal(t, sectionValidation, launch(2, workspace, 0, none), "a tensor is missing")
	require.Equal(t, sectionValidation, launch(-1, workspace, 0, address(2, y.address+256)), "two addresses of a section")
	require.Equal(t, sectionValidation, launch(-1, workspace, 0, address(0, y.address+128)), "overlapping")
	require.Equal(t, sectionValidation, launch(-1, workspace, 0, address(0, 0)), "no address")
	require.Equal(t, sectionValidation, launch(-1, workspace, 0, address(0, 4096)), "not device memory")
	require.Equal(t, sectionValidation, launch(-1, workspace, 0, address(0, g.malloc(64)+16)), "not aligned")
	require.Equal(t, sectionValidation, launch(-1, workspace, 0, address(0, workspace)), "overlaps the workspace")
	require.Equal(t, invalidTensor, launch(-1, workspace, 0, func(list []byte) { list[16] = 1 }), "a shape tensor")
	require.Equal(t, invalidTensor, launch(-1, workspace, 0, func(list []byte) { list[24] = 5 }), "other sizes")
	require.Equal(t, success, launch(-1, workspace, 0, func(list []byte) { list[24] = 4 }))
	require.Equal(t, invalidArgument, launch(-1, 0, 0, none), "no workspace")
	require.Equal(t, invalidArgument, launch(-1, workspace+64, 0, none), "not aligned")
	require.Equal(t, invalidArgument, launch(-1, workspace, 1, none), "unknown flag")

	require.Equal(t, ^uint64(0), g.id(recipe, temp), "not persistent")
	require.Equal(t, sectionValidation, launch(-1, workspace, 0, func(list []byte) {
		binary.LittleEndian.PutUint64(list[224:], ^uint64(0)) // an invalid id is ignored
	}), "a tensor is missing")
	require.Equal(t, invalidTensor, launch(-1, workspace, 0, func(list []byte) { clear(list[224:232]) }), "unknown id")
	g.do("synStreamSynchronize", s.stream)
	require.Equal(t, []float32{2, 4, 6, 8}, g.floatsOf(y))
	require.Equal(t, []float32{1, 2, 3, 4}, g.floatsOf(second))
}

func TestRecipeOfAnotherDevice(t *testing.T) {
	s := open(t, gaudi3)
	g := identity(s) // for Gaudi2
	status, recipe := g.compile()
	require.Equal(t, success, status)
	g.place()
	_, list, n := g.launchList(recipe)
	require.Equal(t, deviceTypeMismatch, g.Call("synLaunch", s.stream, list, uint64(n), 0, recipe, 0))
}

// A launch runs when a call waits for it, and uses the memory of that time.
func TestLaunchesAreDeferred(t *testing.T) {
	s := open(t, gaudi2)
	g := identity(s)
	status, recipe := g.compile()
	require.Equal(t, success, status)
	g.place()
	_, list, n := g.launchList(recipe)
	g.do("synLaunch", s.stream, list, uint64(n), 0, recipe, 0)
	other := s.get("synStreamCreateGeneric", 0, 0)
	s.stream, other = other, s.stream
	require.Equal(t, byte(0xff), g.bytesOf(g.tensors[1])[0], "a wait for one stream does not run another")
	s.stream = other
	require.Equal(t, []float32{1, 2, 3, 4}, g.floatsOf(g.tensors[1]))
	g.do("synLaunch", s.stream, list, uint64(n), 0, recipe, 0)
	g.do("synDeviceFree", 0, g.tensors[0].address, 0)
	require.Equal(t, fail, g.Call("synStreamSynchronize", s.stream))
}

// A launch fills its workspace with NaN, even one that an earlier launch used.
func TestWorkspaceIsOverwritten(t *testing.T) {
	s := open(t, gaudi2)
	g := s.graph(gaudi2)
	x, temp := g.floats([]float32{1, 2, 3, 4}, 4), g.temp(typeF32, 4)
	g.add("abs_fwd_f32", nil, []*tensor{temp}, x)
	g.add("abs_fwd_f32", nil, []*tensor{g.out(typeF32, 4)}, temp)
	status, recipe := g.compile()
	require.Equal(t, success, status)
	g.place()
	bytes := int(g.get("synWorkspaceGetSize", recipe))
	workspace := g.malloc(bytes)
	g.do("synMemsetD8Async", workspace, 0, uint64(bytes), s.stream)
	_, list, n := g.launchList(recipe)
	g.do("synLaunch", s.stream, list, uint64(n), workspace, recipe, 0)
	left := g.read(workspace, bytes)
	require.Equal(t, byte(0xff), left[bytes-1])
}

// Recipes in files.

func TestRecipeFiles(t *testing.T) {
	s := open(t, gaudi2)
	g := s.graph(gaudi2)
	x := g.floats([]float32{1, 2, 3, 4, 5, 6}, 3, 2)
	c := g.temp(typeF32, 3)
	b, p := g.memory(12)
	copy(b, f32Bytes([]float32{10, 20, 30}))
	g.do("synTensorSetHostPtr", c.handle, p, 12, typeF32, 1)
	sum, y := g.temp(typeF32, 3, 2), g.out(typeF32, 2, 3)
	g.add("add_fwd_f32", nil, []*tensor{sum}, x, c)
	g.add("transpose", transposeParams(1, 0), []*tensor{y}, sum)
	status, recipe := g.compile()
	require.Equal(t, success, status)
	g.do("synGraphDestroy", g.handle) // recipes do not need their graph
	path := filepath.Join(t.TempDir(), "recipe")
	s.do("synRecipeSerialize", recipe, s.text(path))
	s.do("synRecipeDestroy", recipe)
	require.Equal(t, invalidArgument, s.Call("synRecipeDestroy", recipe))
	recipe = s.get("synRecipeDeSerialize", s.text(path))
	g.place()
	_, list, n := g.launchList(recipe)
	g.do("synLaunch", s.stream, list, uint64(n), g.workspace(recipe), recipe, 0)
	require.Equal(t, []float32{11, 14, 22, 25, 33, 36}, g.floatsOf(y))

	code, err := os.ReadFile(path)
	require.NoError(t, err)
	_, at := s.memory(8)
	read := func(code []byte) int {
		require.NoError(t, os.WriteFile(path, code, 0o666))
		return s.Call("synRecipeDeSerialize", at, s.text(path))
	}
	require.Equal(t, fail, s.Call("synRecipeDeSerialize", at, s.text(path+".missing")))
	require.Equal(t, fail, read(append([]byte("octet stand-in recipe 0"), code[23:]...)), "another version")
	for n := range code {
		require.Equal(t, fail, read(code[:n]), "cut after %d bytes", n)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 { // damaged files do not crash
		damaged := append([]byte(nil), code...)
		damaged[random.IntN(len(code))] ^= 1 << random.IntN(8)
		read(damaged)
	}
}

func transposeParams(permutation ...uint32) []byte {
	b := make([]byte, 104)
	binary.LittleEndian.PutUint32(b, uint32(len(permutation)))
	for i, d := range permutation {
		binary.LittleEndian.PutUint32(b[4+4*i:], d)
	}
	return b
}

func castParams(rounding uint32) []byte { return binary.LittleEndian.AppendUint32(nil, rounding) }
