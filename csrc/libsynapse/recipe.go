//go:build gaudi && cgo && linux

package libsynapse

// #cgo noescape octet_syn_launch
// #cgo nocallback octet_syn_launch
// #include <stdlib.h>
// #include "libsynapse.h"
import "C"

import (
	"fmt"
	"sync"
	"unsafe"
)

// Recipe is a compiled graph, which a device runs in one launch.
type Recipe struct {
	lib       synapse
	r         C.octet_syn_handle
	workspace uint64
	sections  int

	mu   sync.Mutex
	info *C.octet_syn_launch_info // a launch sets the addresses
}

// Compile compiles a graph for a device type, without needing a device. It takes seconds
// for a layer, and is safe for concurrent use. The name is for errors and logs.
func Compile(t DeviceType, g *Graph, name string) (*Recipe, error) {
	if err := g.Check(); err != nil {
		return nil, fmt.Errorf("recipe %s: %w", name, err)
	}
	lib, err := startSynapse()
	if err != nil {
		return nil, err
	}
	p := pack(g)
	label := C.CString(name)
	defer C.free(unsafe.Pointer(label))
	var where C.octet_syn_place
	r := &Recipe{lib: lib}
	err = synapseError(lib, C.octet_syn_compile(lib.Table, C.int(t), label, C.uint32_t(g.Sections),
		C.uint32_t(len(p.tensors)), unsafe.SliceData(p.tensors), C.uint32_t(len(p.nodes)), unsafe.SliceData(p.nodes),
		unsafe.SliceData(p.indexes), (*C.char)(unsafe.Pointer(unsafe.SliceData(p.bytes))), &where, &r.r))
	if err != nil {
		return nil, compileError(g, name, where, err)
	}
	return r.prepare(g, p.tensors)
}

func compileError(g *Graph, name string, where C.octet_syn_place, err error) error {
	switch {
	case where.tensor >= 0:
		t := &g.Tensors[where.tensor]
		err = fmt.Errorf("tensor %d (%s, %s %v): %w", where.tensor, t.Name, t.Type, t.Sizes, err)
	case where.node >= 0:
		n := &g.Nodes[where.node]
		err = fmt.Errorf("node %d (%s, %s): %w", where.node, n.GUID, n.Name, err)
	}
	if _, hint := Kernels(); hint != nil {
		err = fmt.Errorf("%w; %w", err, hint)
	}
	return fmt.Errorf("recipe %s: %w", name, err)
}

// LoadRecipe reads a recipe that Save wrote. The caller must ensure that it belongs to
// this graph's Key, this device type and this version of SynapseAI: the file does not
// record them.
func LoadRecipe(path string, g *Graph) (*Recipe, error) {
	if err := g.Check(); err != nil {
		return nil, err
	}
	lib, err := startSynapse()
	if err != nil {
		return nil, err
	}
	file := C.CString(path)
	defer C.free(unsafe.Pointer(file))
	r := &Recipe{lib: lib}
	if err := synapseError(lib, C.octet_syn_recipe_load(lib.Table, file, &r.r)); err != nil {
		return nil, fmt.Errorf("recipe in %s: %w", path, err)
	}
	if r, err = r.prepare(g, pack(g).tensors); err != nil {
		return nil, fmt.Errorf("recipe in %s: %w", path, err)
	}
	return r, nil
}

// prepare queries everything that a launch needs.
func (r *Recipe) prepare(g *Graph, tensors []C.octet_syn_tensor) (*Recipe, error) {
	var workspace C.uint64_t
	var known C.uint32_t
	err := synapseError(r.lib, C.octet_syn_recipe_info(r.lib.Table, r.r, C.uint32_t(len(tensors)), unsafe.SliceData(tensors),
		&workspace, &r.info, &known))
	if err == nil && known == 0 && g.Sections > 0 {
		err = fmt.Errorf("it has none of the graph's %d tensors, so it belongs to another graph", len(tensors))
	}
	if err != nil {
		_ = r.Close() // the first error tells more
		return nil, err
	}
	r.workspace, r.sections = uint64(workspace), g.Sections
	return r, nil
}

// Workspace returns the bytes of device memory that a launch needs besides its sections.
// Launches on one stream can share the workspace.
func (r *Recipe) Workspace() uint64 { return r.workspace }

// Save writes the recipe to a file.
func (r *Recipe) Save(path string) error {
	file := C.CString(path)
	defer C.free(unsafe.Pointer(file))
	if err := synapseError(r.lib, C.octet_syn_recipe_save(r.lib.Table, r.r, file)); err != nil {
		return fmt.Errorf("recipe to %s: %w", path, err)
	}
	return nil
}

// Launch runs the recipe on a stream. A tensor's address is that of its section plus its
// offset. The sections and the workspace must not overlap.
func (r *Recipe) Launch(s *Stream, sections []Ptr, workspace Ptr) error {
	if len(sections) != r.sections {
		return fmt.Errorf("launch with %d sections, but the recipe has %d", len(sections), r.sections)
	}
	if workspace == 0 && r.workspace > 0 {
		return fmt.Errorf("launch without a workspace, but the recipe needs %d bytes", r.workspace)
	}
	for i, p := range sections {
		if p == 0 || uint64(p)%uint64(s.d.Align) != 0 {
			return fmt.Errorf("section %d has address %#x, which is not a multiple of %d", i, uint64(p), s.d.Align)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return s.d.check(C.octet_syn_launch(r.lib.Table, r.r, r.info, s.s, (*C.uint64_t)(unsafe.SliceData(sections)), C.uint64_t(workspace)))
}

// Close frees the recipe. No launch of it may be pending.
func (r *Recipe) Close() error {
	C.octet_syn_launch_info_free(r.info)
	r.info = nil
	return synapseError(r.lib, C.octet_syn_recipe_free(r.lib.Table, r.r))
}
