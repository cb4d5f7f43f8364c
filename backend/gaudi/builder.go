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

// A value is a tensor of the graph under construction. Sizes start with the
// fastest-changing dimension: a row-major matrix rows × cols is {cols, rows}, a vector of
// n elements {n, 1}, and a single element {1}, as PyTorch's bridge passes scalars and
// scales.
type value struct {
	index int // index into graph.Tensors; -1: an omitted operand
	typ   libsynapse.DataType
	sizes []uint64
}

// absent is an omitted optional operand.
var absent = value{index: -1}

func (v value) elems() uint64 {
	n := uint64(1)
	for _, s := range v.sizes {
		n *= s
	}
	return n
}

// place is a range of bytes of a root on the device.
type place struct {
	root     *backend.Tensor
	from, to int64
}

func (p place) overlaps(q place) bool { return p.root == q.root && p.from < q.to && q.from < p.to }

// placeView is a place read with a type and sizes: two views of one place are two tensors
// of the graph.
type placeView struct {
	place
	typ   libsynapse.DataType
	sizes string
}

// tensorInfo is what the builder records about a tensor besides libsynapse's fields.
type tensorInfo struct {
	place        // its place; nil root: placed by the compiler
	producer int // the node that writes it; -1: none
	moment   int // when it became the place's newest contents, by builder.clock
}

type constant struct {
	typ   libsynapse.DataType
	sizes string
	bytes string
}

// builder writes the graph of one unit, op by op. Ops read operands with in and f32,
// compute values, and store with out and store. The builder decides where operands are on
// the device and orders the nodes:
//
//   - Operands that outlive the unit are in a persistent section, where the node that
//     computes them writes directly. An inout is two tensors at one place.
//   - The compiler places everything else.
//
// The first error sticks, and finish returns it.
type builder struct {
	spec    backend.Spec
	layouts func(root *backend.Tensor) (layout, bool) // false: the root is local to the unit
	op      *backend.Node                             // being built
	limit   int                                       // maximum bytes of a tensor

	graph     libsynapse.Graph
	infos     []tensorInfo              // one per graph.Tensors
	locals    map[*backend.Tensor]value // contents of the unit's own temps
	current   map[placeView]value       // newest tensor of each place
	constants map[constant]value        // by contents
	scalars   map[float32]value         // by value
	clock     int                       // counts tensorAt and put
	err       error
}

func newBuilder(s backend.Spec, layouts func(root *backend.Tensor) (layout, bool)) *builder {
	return &builder{
		spec: s, layouts: layouts, limit: maxBytes,
		locals: map[*backend.Tensor]value{}, current: map[placeView]value{},
		constants: map[constant]value{}, scalars: map[float32]value{},
	}
}

func (b *builder) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// unsupported returns the error of an op that the device cannot run.
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
		b.fail(b.unsupported("%s of %v has %d bytes, and a Gaudi tensor at most 2^32: use shorter sequences or smaller micro-batches", name, sizes, t.Bytes()))
	}
	b.graph.Tensors = append(b.graph.Tensors, t)
	b.infos = append(b.infos, tensorInfo{place: p, producer: -1, moment: b.clock})
	return value{len(b.graph.Tensors) - 1, typ, sizes}
}

// maxBytes is the maximum size of a tensor. The open compiler has other limits, from the
// engines' registers (tensor_size_validator.cpp, hal.h of gaudi2 and gaudi3): 2^31
// elements of four bytes or 2^32 smaller ones for the matrix engines, and for the TPCs
// 2^31 elements of any size in all dimensions but the last. But larger tensors than
// maxBytes have been seen to give silently wrong results.
const maxBytes = 1 << 32

// node adds a node with one output.
func (b *builder) node(guid string, params []byte, typ libsynapse.DataType, sizes []uint64, in ...value) value {
	return b.nodes(guid, params, []value{{typ: typ, sizes: sizes}}, in...)[0]
}

// nodes adds a node and returns its outputs, which have the types and sizes of outs;
// absent ones are omitted.
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
			b.infos[list[i].index].producer = len(b.graph.Nodes)
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

// table returns a constant of F32 values.
func (b *builder) table(x []float32, sizes ...uint64) value {
	raw := make([]byte, 0, 4*len(x))
	for _, f := range x {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(f))
	}
	return b.data(libsynapse.F32, sizes, raw)
}

// constant returns x as an F32 scalar. It is a node, as in PyTorch's bridge, which the
// compiler folds into the kernels that read it.
func (b *builder) constant(x float32) value {
	if v, ok := b.scalars[x]; ok { // never finds NaN
		return v
	}
	v := b.filled(x, 1)
	b.scalars[x] = v
	return v
}

// filled returns a value of the given sizes with every element x.
func (b *builder) filled(x float32, sizes ...uint64) value {
	return b.node("constant_f32", libsynapse.ConstantParams(x), libsynapse.F32, sizes)
}

// typeOf returns the device's type of a format. E4M3 is the device's own variant.
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
	case fp8.E4M3, fp8.E4M3IEEE:
		b.fail(b.unsupported("the format %s; the E4M3 of %s is %s", d, b.spec.Device, b.spec.E4M3))
	default:
		b.fail(b.unsupported("the format %s", d))
	}
	return libsynapse.F32
}

// notANumber returns NaN as a scalar.
func (b *builder) notANumber() value { return b.constant(float32(math.NaN())) }
