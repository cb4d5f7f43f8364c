package emu

import (
	"context"

	"octet/backend"
	"octet/fp8"
)

// extents are the largest and smallest magnitudes of a tensor, block by block. Ops that
// read or write the whole tensor record them for AdamW, which then need not read it.
// Any other write to the tensor makes them unknown.
type extents struct {
	known bool
	max   []float32 // the largest magnitude of each whole block, unscaled; nil if unused
	min   []float32 // the smallest, only of second moments
}

// extentBlock is the elements of a block. While a model trains, 1 to 10 % of blocks of
// 256 may hold a new maximum; of blocks of 1,024, 6 to 40 %.
const extentBlock = 256

func (e *extents) wanted() bool { return e != nil && e.max != nil }

// note records the largest magnitudes of x, which begins at element at.
func (e *extents) note(at int, x []float32) {
	for i := 0; i+extentBlock <= len(x); i += extentBlock {
		e.max[(at+i)/extentBlock] = fp8.Amax(x[i : i+extentBlock])
	}
}

// changed marks the extents of a tensor unknown.
func (d *device) changed(t *backend.Tensor) {
	if e := d.extents[t.Root()]; e != nil {
		e.known = false
	}
}

// extentsOf returns the extents of the tensors in list that have any.
func (d *device) extentsOf(list []*backend.Tensor) (found []*extents) {
	for _, t := range list {
		if e := d.extents[t.Root()]; e != nil {
			found = append(found, e)
		}
	}
	return found
}

// invalidating returns a kernel that marks the extents of the tensors that n writes
// unknown, then calls run. For an op that renews extents itself it returns run.
func (b *binder) invalidating(n *backend.Node, run kernel) kernel {
	if row, _ := ops.Of(n.Op); row.keepsExtents {
		return run
	}
	var list []*backend.Tensor
	for _, o := range n.Operands() {
		if o.Access != backend.In {
			list = append(list, o.Tensor)
		}
	}
	written := b.extentsOf(list)
	if written == nil {
		return run
	}
	return func(ctx context.Context) error {
		for _, e := range written {
			e.known = false
		}
		return run(ctx)
	}
}
