package libsynapse

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
)

// DataType is a synDataType.
type DataType uint32

// The types that Octet uses, with the values of synapse_common_types.h.
const (
	I8   DataType = 1
	BF16 DataType = 2
	F32  DataType = 4
	I32  DataType = 16
	F16  DataType = 256
	U32  DataType = 1024
	E4M3 DataType = 8192  // syn_type_fp8_143: up to 240 on Gaudi 2, 448 on Gaudi 3
	E5M2 DataType = 16384 // syn_type_fp8_152
)

var dataTypes = map[DataType]struct {
	suffix string
	size   int
}{
	I8: {"i8", 1}, E4M3: {"hf8", 1}, E5M2: {"f8", 1},
	BF16: {"bf16", 2}, F16: {"f16", 2},
	F32: {"f32", 4}, I32: {"i32", 4}, U32: {"u32", 4},
}

// String returns the suffix of kernel names for the type, such as "bf16"; E4M3 is "hf8"
// and E5M2 is "f8".
func (t DataType) String() string {
	if d, ok := dataTypes[t]; ok {
		return d.suffix
	}
	return fmt.Sprintf("synDataType(%d)", uint32(t))
}

// Size returns the bytes of an element, 0 for an unknown type.
func (t DataType) Size() int { return dataTypes[t].size }

// NoSection is the Section of a tensor that the compiler places.
const NoSection = -1

// MaxRank is the maximum number of a tensor's dimensions, which the matrix engines and
// the TPCs can address (SYN_MAX_TENSOR_DIM of synapse_common_types.h).
const MaxRank = 5

// maxConstBytes is the compiler's limit for a constant outside of sections
// (MAX_CONST_TENSOR_SIZE_BYTES of habana_global_conf.cpp).
const maxConstBytes = 1 << 20

// Tensor is an operand of a graph. A row-major matrix rows × cols has the sizes {cols,
// rows}.
type Tensor struct {
	Name    string // for errors only: SynapseAI gets the index, so that names do not change a recipe
	Type    DataType
	Sizes   []uint64 // fastest-changing first
	Section int      // index of its persistent section; NoSection: the compiler places it
	Offset  uint64   // bytes from the start of the section
	Const   []byte   // contents of a constant, else nil
}

// Bytes returns the size of the tensor's elements, without padding.
func (t *Tensor) Bytes() uint64 {
	n := uint64(t.Type.Size())
	for _, size := range t.Sizes {
		n *= size
	}
	return n
}

// Node is one call of a kernel.
type Node struct {
	GUID, Name string // the kernel, and the node's name in errors
	In, Out    []int  // indexes of tensors; -1: an omitted optional operand
	Params     []byte // the kernel's parameter structure; nil: none
	After      []int  // control edges: earlier nodes to wait for, besides those whose outputs it reads
}

// Graph is the input of Compile: plain data, so that it can be made, compared and tested
// without SynapseAI.
type Graph struct {
	Tensors  []Tensor
	Nodes    []Node
	Sections int // number of persistent sections; a launch passes an address for each
}

// Key returns a hash of everything but names. Graphs with equal keys compile to the same
// recipe for the same device type and version of SynapseAI.
func (g *Graph) Key() string {
	w := hasher{sha256.New()}
	w.number(uint64(g.Sections))
	w.number(uint64(len(g.Tensors)))
	for i := range g.Tensors {
		t := &g.Tensors[i]
		w.number(uint64(t.Type))
		w.number(uint64(len(t.Sizes)))
		for _, size := range t.Sizes {
			w.number(size)
		}
		w.number(uint64(t.Section))
		w.number(t.Offset)
		w.bytes(t.Const)
	}
	w.number(uint64(len(g.Nodes)))
	for i := range g.Nodes {
		n := &g.Nodes[i]
		w.bytes([]byte(n.GUID))
		w.indexes(n.In)
		w.indexes(n.Out)
		w.bytes(n.Params)
		w.indexes(n.After)
	}
	return hex.EncodeToString(w.Sum(nil))
}

// A hasher writes fields unambiguously: integers have a fixed length, and lists start
// with their length.
type hasher struct{ hash.Hash }

func (w hasher) number(v uint64) {
	_, _ = w.Write(binary.LittleEndian.AppendUint64(nil, v)) // a hash returns no error
}

func (w hasher) bytes(b []byte) {
	w.number(uint64(len(b)))
	_, _ = w.Write(b)
}

func (w hasher) indexes(list []int) {
	w.number(uint64(len(list)))
	for _, i := range list {
		w.number(uint64(i))
	}
}

// Check returns an error for a graph that SynapseAI would refuse with a mere status, or
// compute silently wrong: tensors above 4 GiB, whose strides exceed 32 bits.
func (g *Graph) Check() error {
	for i := range g.Tensors {
		t := &g.Tensors[i]
		if err := t.check(g.Sections); err != nil {
			return fmt.Errorf("tensor %d (%s): %w", i, t.Name, err)
		}
	}
	written := make(map[int]int, len(g.Nodes))
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if err := g.checkNode(i, written); err != nil {
			return fmt.Errorf("node %d (%s, %s): %w", i, n.GUID, n.Name, err)
		}
	}
	if len(g.Nodes) == 0 {
		return fmt.Errorf("the graph has no nodes")
	}
	return nil
}

func (t *Tensor) check(sections int) error {
	if t.Type.Size() == 0 {
		return fmt.Errorf("unknown type %d", t.Type)
	}
	if len(t.Sizes) == 0 || len(t.Sizes) > MaxRank {
		return fmt.Errorf("it has %d dimensions; Gaudi supports 1 to %d", len(t.Sizes), MaxRank)
	}
	maxElems := uint64(1<<32) / uint64(t.Type.Size())
	for _, size := range t.Sizes {
		if size == 0 {
			return fmt.Errorf("sizes %v: a dimension is empty", t.Sizes)
		}
		if size > maxElems {
			return fmt.Errorf("sizes %v of %s exceed 4 GiB, Gaudi's limit for a tensor", t.Sizes, t.Type)
		}
		maxElems /= size
	}
	switch {
	case t.Section < NoSection || t.Section >= sections:
		return fmt.Errorf("section %d is not one of the graph's %d", t.Section, sections)
	case t.Section == NoSection && t.Offset != 0:
		return fmt.Errorf("offset %d without a section", t.Offset)
	case t.Const != nil && t.Section != NoSection:
		return fmt.Errorf("a constant must not have a section, this one has %d", t.Section)
	case t.Const != nil && uint64(len(t.Const)) != t.Bytes():
		return fmt.Errorf("the constant has %d bytes, but its sizes %v of %s need %d", len(t.Const), t.Sizes, t.Type, t.Bytes())
	case len(t.Const) > maxConstBytes:
		return fmt.Errorf("the constant has %d bytes; the compiler accepts at most %d", len(t.Const), maxConstBytes)
	}
	return nil
}

// checkNode checks node i; written maps tensors to the node that writes them.
func (g *Graph) checkNode(i int, written map[int]int) error {
	n := &g.Nodes[i]
	if n.GUID == "" {
		return fmt.Errorf("it names no kernel")
	}
	for _, list := range [][]int{n.In, n.Out} {
		for _, k := range list {
			if k < -1 || k >= len(g.Tensors) {
				return fmt.Errorf("operand %d is not one of the %d tensors", k, len(g.Tensors))
			}
		}
	}
	for _, k := range n.In {
		if k < 0 {
			continue
		}
		if _, ok := written[k]; !g.Tensors[k].readable(ok) {
			return fmt.Errorf("it reads tensor %d (%s), which no earlier node writes", k, g.Tensors[k].Name)
		}
	}
	for _, k := range n.Out {
		if k < 0 {
			continue
		}
		t := &g.Tensors[k]
		if t.Const != nil {
			return fmt.Errorf("it writes tensor %d (%s), a constant", k, t.Name)
		}
		if first, ok := written[k]; ok {
			return fmt.Errorf("it writes tensor %d (%s), which node %d already writes", k, t.Name, first)
		}
		written[k] = i
	}
	for _, k := range n.After {
		if k < 0 || k >= i {
			return fmt.Errorf("it waits for node %d, which is not an earlier node", k)
		}
	}
	return nil
}

// readable reports whether an operand has contents that a node can read.
func (t *Tensor) readable(written bool) bool {
	return written || t.Section != NoSection || t.Const != nil
}
