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

// forget marks e, which may be nil, unknown.
func (e *extents) forget() {
	if e != nil {
		e.known = false
	}
}

func (e *extents) wanted() bool { return e != nil && e.max != nil }

// note records the largest magnitudes of x, which begins at element at.
func (e *extents) note(at int, x []float32) {
	for i := 0; i+extentBlock <= len(x); i += extentBlock {
		e.max[(at+i)/extentBlock] = fp8.Amax(x[i : i+extentBlock])
	}
}

// changed marks the extents of a tensor unknown.
func (d *device) changed(t *backend.Tensor) {
	d.extents[t.Root()].forget()
}

// invalidating returns a kernel that marks the extents of the tensors that n writes
// unknown, then calls run. An op that renews extents does so itself, except for a tensor
// of which it writes a view.
func (b *binder) invalidating(n *backend.Node, run kernel) kernel {
	row, _ := ops.Of(n.Op)
	var written []*extents
	for _, o := range n.Operands() {
		e := b.extents[o.Tensor.Root()]
		renewed := row.keepsExtents && b.extents[o.Tensor] != nil
		if o.Access != backend.In && e != nil && !renewed {
			written = append(written, e)
		}
	}
	if written == nil {
		return run
	}
	return func(ctx context.Context) error {
		for _, e := range written {
			e.forget()
		}
		return run(ctx)
	}
}
