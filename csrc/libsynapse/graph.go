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

// String is how the names of kernels end that work in t: "bf16", and "hf8" for
// E4M3, "f8" for E5M2.
func (t DataType) String() string {
	if d, ok := dataTypes[t]; ok {
		return d.suffix
	}
	return fmt.Sprintf("synDataType(%d)", uint32(t))
}

// Size is the bytes of an element, 0 of an unknown type.
func (t DataType) Size() int { return dataTypes[t].size }

// NoSection is the Section of a tensor that the compiler places.
const NoSection = -1

// MaxRank is how many dimensions a tensor can have: what the matrix engines and
// the tensor cores address (SYN_MAX_TENSOR_DIM of synapse_common_types.h).
const MaxRank = 5

// maxConst is what the compiler takes as the contents of a constant outside of
// sections (MAX_CONST_TENSOR_SIZE_BYTES of habana_global_conf.cpp).
const maxConst = 1 << 20

// Tensor is an operand of a graph. A matrix of rows of cols numbers, row-major,
// has the sizes {cols, rows}.
type Tensor struct {
	Name    string // for people: SynapseAI is told the index, so that names don't make a recipe another
	Type    DataType
	Sizes   []uint64 // fastest-changing first
	Section int      // number of the persistent section it lies in, from 0; NoSection: the compiler places it
	Offset  uint64   // bytes in the section
	Const   []byte   // contents of a constant, else nil
}

// Bytes is what the tensor's elements take, without padding.
func (t *Tensor) Bytes() uint64 {
	n := uint64(t.Type.Size())
	for _, size := range t.Sizes {
		n *= size
	}
	return n
}

// Node is a kernel at work.
type Node struct {
	GUID, Name string // the kernel, and what people call the node
	In, Out    []int  // indexes of tensors; -1: an optional operand that is left out
	Params     []byte // the kernel's parameter structure; nil: none
	After      []int  // earlier nodes that must have run before this one, beyond those whose outputs it reads
}

// Graph is what becomes a recipe: plain data, so that it can be made, compared
// and tested without SynapseAI.
type Graph struct {
	Tensors  []Tensor
	Nodes    []Node
	Sections int // persistent sections; a launch brings an address for each
}

// Key is a hash of everything but names: graphs with the same key compile to
// the same recipe, for the same device and version of SynapseAI.
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

// A hasher writes fields so that different sequences of them are different
// bytes: numbers are as long as each other, and lists begin with their length.
type hasher struct{ hash.Hash }

func (w hasher) number(v uint64) {
	_, _ = w.Write(binary.LittleEndian.AppendUint64(nil, v)) // a hash has no error
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

// Check finds what SynapseAI would refuse with no more than a status, and what
// it has been seen to compute wrongly in silence: tensors above 4 GiB, whose
// strides leave 32 bits.
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
		return fmt.Errorf("the graph has no node")
	}
	return nil
}

func (t *Tensor) check(sections int) error {
	if t.Type.Size() == 0 {
		return fmt.Errorf("unknown type %d", t.Type)
	}
	if len(t.Sizes) == 0 || len(t.Sizes) > MaxRank {
		return fmt.Errorf("it has %d dimensions, and Gaudi tensors 1 to %d", len(t.Sizes), MaxRank)
	}
	room := uint64(1<<32) / uint64(t.Type.Size())
	for _, size := range t.Sizes {
		if size == 0 {
			return fmt.Errorf("sizes %v: a dimension is empty", t.Sizes)
		}
		if size > room {
			return fmt.Errorf("sizes %v of %s take more than 4 GiB, more than Gaudi addresses in a tensor", t.Sizes, t.Type)
		}
		room /= size
	}
	switch {
	case t.Section < NoSection || t.Section >= sections:
		return fmt.Errorf("section %d of %d", t.Section, sections)
	case t.Section == NoSection && t.Offset != 0:
		return fmt.Errorf("offset %d without a section", t.Offset)
	case t.Const != nil && t.Section != NoSection:
		return fmt.Errorf("a constant lies in no section, this one in %d", t.Section)
	case t.Const != nil && uint64(len(t.Const)) != t.Bytes():
		return fmt.Errorf("the constant has %d bytes, its sizes %v of %s %d", len(t.Const), t.Sizes, t.Type, t.Bytes())
	case len(t.Const) > maxConst:
		return fmt.Errorf("the constant has %d bytes, and the compiler takes %d", len(t.Const), maxConst)
	}
	return nil
}

// checkNode looks at node i; written maps tensors to the node that writes them.
func (g *Graph) checkNode(i int, written map[int]int) error {
	n := &g.Nodes[i]
	if n.GUID == "" {
		return fmt.Errorf("it names no kernel")
	}
	for _, list := range [][]int{n.In, n.Out} {
		for _, k := range list {
			if k < -1 || k >= len(g.Tensors) {
				return fmt.Errorf("operand %d of %d tensors", k, len(g.Tensors))
			}
		}
	}
	for _, k := range n.In {
		if k < 0 {
			continue
		}
		if _, ok := written[k]; !g.Tensors[k].has(ok) {
			return fmt.Errorf("it reads tensor %d (%s), which no earlier node writes", k, g.Tensors[k].Name)
		}
	}
	for _, k := range n.Out {
		if k < 0 {
			continue
		}
		t := &g.Tensors[k]
		if t.Const != nil {
			return fmt.Errorf("it writes tensor %d (%s), which has no memory to write to", k, t.Name)
		}
		if first, ok := written[k]; ok {
			return fmt.Errorf("it writes tensor %d (%s), which node %d writes", k, t.Name, first)
		}
		written[k] = i
	}
	for _, k := range n.After {
		if k < 0 || k >= i {
			return fmt.Errorf("it waits for node %d, which is not an earlier one", k)
		}
	}
	return nil
}

// has tells whether an operand has contents that a node can read.
func (t *Tensor) has(written bool) bool {
	return written || t.Section != NoSection || t.Const != nil
}
