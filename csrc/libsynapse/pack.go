//go:build gaudi && cgo && linux

package libsynapse

// #include "libsynapse.h"
import "C"

import "unsafe"

// A packed graph is flat arrays without pointers, so that one call passes all of it to C.
type packed struct {
	tensors []C.octet_syn_tensor
	nodes   []C.octet_syn_node
	indexes []C.int32_t // of operands and of nodes
	bytes   []byte      // zero-terminated strings, parameters and constants
}

// pack packs a graph that passed Check.
func pack(g *Graph) *packed {
	p := &packed{
		tensors: make([]C.octet_syn_tensor, len(g.Tensors)),
		nodes:   make([]C.octet_syn_node, len(g.Nodes)),
	}
	for i := range g.Tensors {
		p.tensors[i] = p.tensor(&g.Tensors[i])
	}
	for i := range g.Nodes {
		p.nodes[i] = p.node(&g.Nodes[i])
	}
	return p
}

func (p *packed) tensor(t *Tensor) C.octet_syn_tensor {
	c := C.octet_syn_tensor{
		offset: C.uint64_t(t.Offset), dims: C.uint32_t(len(t.Sizes)), _type: C.uint32_t(t.Type),
		section: C.int32_t(t.Section),
	}
	for i, size := range t.Sizes {
		c.sizes[i] = C.uint64_t(size)
	}
	c.data, c.data_bytes = p.data(t.Const)
	return c
}

func (p *packed) node(n *Node) (c C.octet_syn_node) {
	c.guid, c.name = p.text(n.GUID), p.text(n.Name)
	c.params, c.params_bytes = p.data(n.Params)
	c.in, c.ins = p.list(n.In)
	c.out, c.outs = p.list(n.Out)
	c.after, c.afters = p.list(n.After)
	return c
}

// data appends bytes, aligned for any parameter structure, and returns their offset.
func (p *packed) data(b []byte) (offset, bytes C.uint64_t) {
	const align = int(unsafe.Alignof(uint64(0)))
	for len(p.bytes)%align != 0 {
		p.bytes = append(p.bytes, 0)
	}
	at := len(p.bytes)
	p.bytes = append(p.bytes, b...)
	return C.uint64_t(at), C.uint64_t(len(b))
}

func (p *packed) text(s string) C.uint64_t {
	at := len(p.bytes)
	p.bytes = append(append(p.bytes, s...), 0)
	return C.uint64_t(at)
}

func (p *packed) list(list []int) (offset, length C.uint32_t) {
	at := len(p.indexes)
	for _, k := range list {
		p.indexes = append(p.indexes, C.int32_t(k))
	}
	return C.uint32_t(at), C.uint32_t(len(list))
}
