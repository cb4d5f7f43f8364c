//go:build gaudi && cgo && linux

package libsynapse

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/csrc/standin"
)

// floats returns a tensor of n F32 values.
func floats(name string, n uint64, section int, offset uint64) Tensor {
	return Tensor{Name: name, Type: F32, Sizes: []uint64{n}, Section: section, Offset: offset}
}

// double returns the graph y = x + x, in two sections.
func double() *Graph {
	return &Graph{
		Tensors:  []Tensor{floats("x", 32, 0, 0), floats("y", 32, 1, 0)},
		Nodes:    []Node{{GUID: "add_fwd_f32", Name: "twice", In: []int{0, 0}, Out: []int{1}}},
		Sections: 2,
	}
}

func recipe(t *testing.T, d *Device, g *Graph, name string) *Recipe {
	r, err := Compile(d.Type, g, name)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// A rig copies values to and from a device.
type rig struct {
	t *testing.T
	d *Device
	s *Stream
	h *Host
}

func newRig(t *testing.T, d *Device) rig { return rig{t, d, stream(t, d), host(t, d, 4096)} }

func (r rig) write(p Ptr, values any) {
	n, err := binary.Encode(r.h.Bytes(), binary.LittleEndian, values)
	require.NoError(r.t, err)
	require.NoError(r.t, r.s.CopyIn(p, r.h, 0, n))
	require.NoError(r.t, r.s.Synchronize())
}

func (r rig) read(p Ptr, n int) []float32 {
	require.NoError(r.t, r.s.CopyOut(r.h, 0, p, 4*n))
	require.NoError(r.t, r.s.Synchronize())
	values := make([]float32, n)
	_, err := binary.Decode(r.h.Bytes()[:4*n], binary.LittleEndian, values)
	require.NoError(r.t, err)
	return values
}

func (r rig) launch(recipe *Recipe, sections ...Ptr) {
	var workspace Ptr
	if n := recipe.Workspace(); n > 0 {
		workspace = alloc(r.t, r.d, int(n))
	}
	require.NoError(r.t, recipe.Launch(r.s, sections, workspace))
	require.NoError(r.t, r.s.Synchronize())
}

func ramp(n int, step float32) []float32 {
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(i) * step
	}
	return values
}

// One recipe serves any addresses, as layers require.
func TestRecipeRunsAtTheAddressesOfTheLaunch(t *testing.T) {
	d := device(t)
	g := newRig(t, d)
	r := recipe(t, d, double(), "doubling")
	a, b, c := alloc(t, d, 128), alloc(t, d, 128), alloc(t, d, 128)
	g.write(a, ramp(32, 1))
	g.launch(r, a, b)
	require.Equal(t, ramp(32, 2), g.read(b, 32))
	g.launch(r, b, c)
	require.Equal(t, ramp(32, 4), g.read(c, 32))
	require.Equal(t, ramp(32, 1), g.read(a, 32))
}

// crowd returns a graph with every feature: a constant, a tensor that the compiler
// places, offsets, and a section that is overwritten in place after the node that reads
// it:
//
//	y = 3x + 1, then x = 2x
func everything() *Graph {
	return &Graph{
		Tensors: []Tensor{
			floats("x", 32, 0, 128), floats("new x", 32, 0, 128), floats("y", 32, 0, 256),
			floats("3x", 32, NoSection, 0),
			{Name: "3", Type: F32, Sizes: []uint64{1}, Section: NoSection, Const: []byte{0, 0, 0x40, 0x40}},
			floats("1", 1, NoSection, 0),
		},
		Nodes: []Node{
			{GUID: "constant_f32", Name: "one", Out: []int{5}, Params: ConstantParams(1)},
			{GUID: "mult_fwd_f32", Name: "three", In: []int{0, 4}, Out: []int{3}},
			{GUID: "add_fwd_f32", Name: "plus", In: []int{3, 5}, Out: []int{2}},
			{GUID: "add_fwd_f32", Name: "twice", In: []int{0, 0}, Out: []int{1}, After: []int{1}},
		},
		Sections: 1,
	}
}

func TestGraphWithEverything(t *testing.T) {
	d := device(t)
	g := newRig(t, d)
	p := alloc(t, d, 384)
	want := ramp(32, 3)
	for i := range want {
		want[i]++
	}
	for seed := range 8 { // the stand-in runs nodes in a random order that the graph allows
		t.Setenv("STANDIN_SEED", fmt.Sprint(seed+1))
		r := recipe(t, d, everything(), "crowd")
		require.Positive(t, r.Workspace())
		g.write(p+128, ramp(32, 1))
		g.launch(r, p)
		require.Equal(t, ramp(32, 2), g.read(p+128, 32))
		require.Equal(t, want, g.read(p+256, 32))
	}
}

// A cast with amax but without a scale: an input is omitted.
func TestOptionalOperand(t *testing.T) {
	d := device(t)
	g := newRig(t, d)
	a, b, c := alloc(t, d, 128), alloc(t, d, 128), alloc(t, d, 128)
	g.write(a, []float32{1, -3, 0.5, 2})
	r := recipe(t, d, &Graph{
		Tensors: []Tensor{
			floats("x", 4, 0, 0),
			{Name: "codes", Type: E4M3, Sizes: []uint64{4}, Section: 1},
			floats("amax", 1, 2, 0),
		},
		Nodes:    []Node{{GUID: "convert_to_fp8_f32", Name: "cast", In: []int{0, -1}, Out: []int{1, 2}, Params: CastParams(Nearest)}},
		Sections: 3,
	}, "cast")
	g.launch(r, a, b, c)
	require.Equal(t, []float32{3}, g.read(c, 1))
	g.read(b, 1)
	require.Equal(t, []byte{0x38, 0xc4, 0x30, 0x40}, g.h.Bytes()[:4])
}

// The gradient of an embedding table with I32 indexes.
func TestGradientOfATable(t *testing.T) {
	d := device(t)
	g := newRig(t, d)
	a, b, c := alloc(t, d, 128), alloc(t, d, 128), alloc(t, d, 128)
	g.write(a, []float32{1, 2, 10, 20, 100, 200}) // three gradients of two elements
	g.write(b, []int32{2, 0, 2})
	r := recipe(t, d, &Graph{
		Tensors: []Tensor{
			{Name: "dy", Type: F32, Sizes: []uint64{2, 3}, Section: 0},
			{Name: "ids", Type: I32, Sizes: []uint64{3}, Section: 1},
			{Name: "dw", Type: F32, Sizes: []uint64{2, 4}, Section: 2},
		},
		Nodes: []Node{{
			GUID: "embedding_dense_pt_bwd_f32", Name: "grad", In: []int{0, 1}, Out: []int{2}, Params: EmbeddingGradParams(4),
		}},
		Sections: 3,
	}, "embedding")
	g.launch(r, a, b, c)
	require.Equal(t, []float32{10, 20, 0, 0, 101, 202, 0, 0}, g.read(c, 8))
}

func TestCompileNeedsNoDevice(t *testing.T) {
	t.Setenv("OCTET_LIBSYNAPSE", standin.Build(t, "libsynapse"))
	t.Setenv("STANDIN_GAUDI2", "0")
	r, err := Compile(Gaudi3, double(), "doubling")
	require.NoError(t, err)
	require.NoError(t, r.Close())
}

func TestCompileErrorsNameTheNode(t *testing.T) {
	d := device(t)
	g := double()
	g.Nodes[0].GUID = "add_twice_f32"
	_, err := Compile(d.Type, g, "doubling")
	require.EqualError(t, err, "recipe doubling: node 0 (add_twice_f32, twice): synNodeCreateWithId returned 26 (synFail)")

	t.Setenv("GC_KERNEL_PATH", "")
	_, err = Compile(d.Type, g, "doubling")
	require.ErrorContains(t, err, "synNodeCreateWithId returned 26 (synFail); GC_KERNEL_PATH is not set")

	g.Sections = 1
	_, err = Compile(d.Type, g, "doubling")
	require.EqualError(t, err, "recipe doubling: tensor 1 (y): section 1 is not one of the graph's 1")

	_, err = Compile(DeviceType(99), double(), "doubling")
	require.ErrorContains(t, err, "recipe doubling: synGraphCreate returned ")
}

func TestRecipeSurvivesOnDisk(t *testing.T) {
	d := device(t)
	g := newRig(t, d)
	path := filepath.Join(t.TempDir(), "doubling.recipe")
	r := recipe(t, d, double(), "doubling")
	require.NoError(t, r.Save(path))

	named := double() // other names, the same recipe
	named.Tensors[0].Name, named.Tensors[1].Name = "layers.1.x", "layers.1.y"
	loaded, err := LoadRecipe(path, named)
	require.NoError(t, err)
	require.Equal(t, r.Workspace(), loaded.Workspace())
	a, b := alloc(t, d, 128), alloc(t, d, 128)
	g.write(a, ramp(32, 1))
	g.launch(loaded, a, b)
	require.Equal(t, ramp(32, 2), g.read(b, 32))
	require.NoError(t, loaded.Close())

	require.ErrorContains(t, r.Save(filepath.Join(t.TempDir(), "no", "folder")), "synRecipeSerialize returned ")
	_, err = LoadRecipe(filepath.Join(t.TempDir(), "missing"), double())
	require.ErrorContains(t, err, "synRecipeDeSerialize returned ")
	require.NoError(t, os.WriteFile(path, []byte("no recipe"), 0o666))
	_, err = LoadRecipe(path, double())
	require.ErrorContains(t, err, "recipe in "+path+": synRecipeDeSerialize returned ")
	_, err = LoadRecipe(path, &Graph{})
	require.EqualError(t, err, "the graph has no nodes")
}

func TestRecipeOfAnotherGraph(t *testing.T) {
	d := device(t)
	path := filepath.Join(t.TempDir(), "doubling.recipe")
	require.NoError(t, recipe(t, d, double(), "doubling").Save(path))
	g := double() // with other persistent tensors
	g.Tensors = append([]Tensor{floats("", 1, NoSection, 0), floats("", 1, NoSection, 0)}, g.Tensors...)
	g.Nodes[0].In, g.Nodes[0].Out = []int{2, 2}, []int{3}
	_, err := LoadRecipe(path, g)
	require.EqualError(t, err, "recipe in "+path+": it has none of the graph's 4 tensors, so it belongs to another graph")
}

func TestLaunchErrors(t *testing.T) {
	d := device(t)
	s := stream(t, d)
	p := alloc(t, d, 512)
	r := recipe(t, d, double(), "doubling")
	require.EqualError(t, r.Launch(s, []Ptr{p}, p), "launch with 1 sections, but the recipe has 2")
	require.EqualError(t, r.Launch(s, []Ptr{p, 0}, p), "section 1 has address 0x0, which is not a multiple of 128")
	require.ErrorContains(t, r.Launch(s, []Ptr{p, p + 4}, p), "which is not a multiple of 128")
	require.Equal(t, "synFailedSectionValidation", name(r.Launch(s, []Ptr{p, p}, p+256)), "the sections overlap")

	r = recipe(t, d, everything(), "crowd")
	require.EqualError(t, r.Launch(s, []Ptr{p}, 0), fmt.Sprintf("launch without a workspace, but the recipe needs %d bytes", r.Workspace()))
}

// After a device is lost, every call reports it. Neither a lost device nor anything made
// on it is closed.
func TestLostDevice(t *testing.T) {
	t.Setenv("OCTET_LIBSYNAPSE", standin.Build(t, "libsynapse"))
	t.Setenv("STANDIN_LOST", "2")
	d, err := Open(0)
	require.NoError(t, err)
	s, err := d.NewStream()
	require.NoError(t, err)
	p, err := d.Alloc(256)
	require.NoError(t, err)
	r, err := Compile(d.Type, double(), "doubling")
	require.NoError(t, err)
	run := func() error {
		workspace, err := d.Alloc(max(1, int(r.Workspace())))
		if err != nil {
			return err
		}
		if err := r.Launch(s, []Ptr{p, p + 128}, workspace); err != nil {
			return err
		}
		return s.Synchronize()
	}
	require.NoError(t, s.Fill(p, 0, 256))
	require.NoError(t, run())
	err = run()
	var e *Error
	require.ErrorAs(t, err, &e)
	require.True(t, e.DeviceLost(), err)
	_, err = d.Alloc(1)
	require.ErrorAs(t, err, &e)
	require.True(t, e.DeviceLost(), err)
}

// Goroutines share a recipe and a stream, each with its own addresses.
func TestConcurrentCalls(t *testing.T) {
	d := device(t)
	g := newRig(t, d)
	r := recipe(t, d, double(), "doubling")
	const n = 8
	in, out, workspace := alloc(t, d, 128*n), alloc(t, d, 128*n), alloc(t, d, max(1, int(r.Workspace())))
	g.write(in, ramp(32*n, 1))
	var group sync.WaitGroup
	for i := range Ptr(n) {
		group.Go(func() {
			own, err := Compile(d.Type, double(), "its own")
			if err == nil {
				err = own.Close()
			}
			if err == nil {
				err = r.Launch(g.s, []Ptr{in + 128*i, out + 128*i}, workspace)
			}
			if err == nil {
				err = g.s.Synchronize()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	require.Equal(t, ramp(32*n, 2), g.read(out, 32*n))
}

// A sum has the same bits in every launch: its order does not depend on which part is
// done first.
func TestLaunchesRepeat(t *testing.T) {
	d := device(t)
	g := newRig(t, d)
	tensor := func(sizes []uint64, section int) Tensor {
		return Tensor{Type: F32, Sizes: sizes, Section: section}
	}
	r := recipe(t, d, &Graph{
		Tensors:  []Tensor{tensor([]uint64{3, 1}, 0), tensor([]uint64{1, 3}, 1), tensor([]uint64{1, 1}, 2)},
		Nodes:    []Node{{GUID: "gemm", Name: "sum", In: []int{0, 1}, Out: []int{2}, Params: GemmParams(false, false)}},
		Sections: 3,
	}, "sum")
	a, b, c := alloc(t, d, 128), alloc(t, d, 128), alloc(t, d, 128)
	g.write(a, []float32{1e8, -1e8, 1}) // in the reverse order the sum is 0
	g.write(b, []float32{1, 1, 1})
	for range 4 {
		g.launch(r, a, b, c)
		require.Equal(t, []float32{1}, g.read(c, 1))
	}
}
