package gaudi

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"octet/backend"
	"octet/csrc/libsynapse"
	"octet/fp8"
)

// A value is a tensor of the graph under construction. Sizes are counted from
// the fastest-changing: a row-major matrix of rows × cols is {cols, rows}, a
// vector of n {n, 1}, and what has one element {1}, as PyTorch's bridge passes
// scalars and scales.
type value struct {
	index int // of graph.Tensors; -1: an operand that is left out
	typ   libsynapse.DataType
	sizes []uint64
}

// absent stands for an optional operand that is left out.
var absent = value{index: -1}

func (v value) elems() uint64 {
	n := uint64(1)
	for _, s := range v.sizes {
		n *= s
	}
	return n
}

// place is a range of bytes of a root's layout on the device.
type place struct {
	root     *backend.Tensor
	from, to int64
}

func (p place) overlaps(q place) bool { return p.root == q.root && p.from < q.to && q.from < p.to }

// shown is a place seen as a tensor of a type and sizes: two of them over one
// place are two tensors of the graph.
type shown struct {
	place
	typ   libsynapse.DataType
	sizes string
}

// slot is what the builder knows of a tensor of the graph beside libsynapse's.
type slot struct {
	place        // where it lies; no root: where the compiler likes
	producer int // the node that writes it; -1: none
	moment   int // when it became the place's tensor, on the builder's clock
}

type constant struct {
	typ   libsynapse.DataType
	sizes string
	bytes string
}

// builder writes the graph of one unit, op by op. Ops read operands by in and
// f32, compute in values, and store by out and store; where an operand lies on
// the device, and what has to wait for what, is the builder's business:
//
//   - What outlives the unit lies in a persistent section and is written there by
//     the node that computes it. An inout is two tensors at one place.
//   - Everything else the compiler places.
//
// The first error sticks, and finish returns it.
type builder struct {
	spec    backend.Spec
	layouts func(root *backend.Tensor) (layout, bool) // false: the root lives inside the unit
	op      *backend.Node                             // being built
	limit   int                                       // bytes that a tensor may take

	graph     libsynapse.Graph
	slots     []slot                    // of graph.Tensors
	locals    map[*backend.Tensor]value // what the unit's own temps hold
	shown     map[shown]value           // the tensor that holds a place's newest contents
	constants map[constant]value        // by contents
	scalars   map[float32]value         // by value
	clock     int                       // counts in and put
	err       error
}

func newBuilder(s backend.Spec, layouts func(root *backend.Tensor) (layout, bool)) *builder {
	return &builder{
		spec: s, layouts: layouts, limit: maxBytes,
		locals: map[*backend.Tensor]value{}, shown: map[shown]value{},
		constants: map[constant]value{}, scalars: map[float32]value{},
	}
}

func (b *builder) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// unsupported is the error of an op that cannot be had on the device.
func (b *builder) unsupported(format string, args ...any) error {
	return unsupported(b.op, format, args...)
}

func unsupported(n *backend.Node, format string, args ...any) error {
	return fmt.Errorf("%s: %w by backend gaudi: %s", n.Path(), backend.ErrUnsupported, fmt.Sprintf(format, args...))
}

// tensor adds a tensor to the graph.
func (b *builder) tensor(name string, typ libsynapse.DataType, sizes []uint64, p place) value {
	t := libsynapse.Tensor{Name: name, Type: typ, Sizes: sizes, Section: libsynapse.NoSection}
	if t.Bytes() > uint64(b.limit) {
		b.fail(b.unsupported("%s of %v takes %d bytes, and a tensor on Gaudi at most 2^32: use shorter sequences or smaller micro-batches", name, sizes, t.Bytes()))
	}
	b.graph.Tensors = append(b.graph.Tensors, t)
	b.slots = append(b.slots, slot{place: p, producer: -1, moment: b.clock})
	return value{len(b.graph.Tensors) - 1, typ, sizes}
}

// maxBytes is the most that a tensor may take. The open compiler has other limits, of
// the engines' registers (tensor_size_validator.cpp, hal.h of gaudi2 and gaudi3): 2^31
// numbers of four bytes or 2^32 smaller ones for the matrix engines, 2^31 of any for all
// dimensions but the last on the tensor cores. But what is larger than this has been
// seen to be computed wrongly in silence.
const maxBytes = 1 << 32

// node adds a node with one output.
func (b *builder) node(guid string, params []byte, typ libsynapse.DataType, sizes []uint64, in ...value) value {
	return b.nodes(guid, params, []value{{typ: typ, sizes: sizes}}, in...)[0]
}

// nodes adds a node with the outputs described by the types and sizes of outs,
// and returns them; absent ones are left out.
func (b *builder) nodes(guid string, params []byte, outs []value, in ...value) []value {
	n := libsynapse.Node{GUID: guid, Params: params}
	if b.op != nil {
		n.Name = b.op.Path()
	}
	for _, v := range in {
		n.In = append(n.In, v.index)
	}
	list := make([]value, len(outs))
	for i, v := range outs {
		if list[i] = absent; v.index >= 0 {
			list[i] = b.tensor(n.Name, v.typ, slices.Clone(v.sizes), place{})
			b.slots[list[i].index].producer = len(b.graph.Nodes)
		}
		n.Out = append(n.Out, list[i].index)
	}
	b.graph.Nodes = append(b.graph.Nodes, n)
	return list
}

// data adds a constant with the given contents, once.
func (b *builder) data(typ libsynapse.DataType, sizes []uint64, contents []byte) value {
	key := constant{typ, fmt.Sprint(sizes), string(contents)}
	if v, ok := b.constants[key]; ok {
		return v
	}
	v := b.tensor("constant", typ, sizes, place{})
	b.graph.Tensors[v.index].Const = contents
	b.constants[key] = v
	return v
}

// table is a constant of F32 numbers.
func (b *builder) table(x []float32, sizes ...uint64) value {
	raw := make([]byte, 0, 4*len(x))
	for _, f := range x {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(f))
	}
	return b.data(libsynapse.F32, sizes, raw)
}

// constant is x as an F32 scalar: a node, which the compiler folds into the
// kernels that read it, as PyTorch's bridge makes them.
func (b *builder) constant(x float32) value {
	if v, ok := b.scalars[x]; ok { // NaN is made anew each time
		return v
	}
	v := b.filled(x, 1)
	b.scalars[x] = v
	return v
}

// filled is a value of the given sizes with x everywhere.
func (b *builder) filled(x float32, sizes ...uint64) value {
	return b.node("constant_f32", libsynapse.ConstantParams(x), libsynapse.F32, sizes)
}

// typeOf is the device's type of a format; E4M3 is the device's own.
func (b *builder) typeOf(d fp8.DType) libsynapse.DataType {
	switch d {
	case fp8.F32:
		return libsynapse.F32
	case fp8.BF16:
		return libsynapse.BF16
	case fp8.F16:
		return libsynapse.F16
	case fp8.I32:
		return libsynapse.I32
	case fp8.E5M2:
		return libsynapse.E5M2
	case b.spec.E4M3:
		return libsynapse.E4M3
	default:
		b.fail(b.unsupported("the format %s; the E4M3 of %s is %s", d, b.spec.Device, b.spec.E4M3))
		return libsynapse.F32
	}
}

// notANumber is NaN as a scalar.
func (b *builder) notANumber() value { return b.constant(float32(math.NaN())) }
