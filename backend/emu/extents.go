package emu

import (
	"context"

	"octet/backend"
	"octet/fp8"
)

// extents are what is known of a tensor's magnitudes, block by block, without a look
// at it: ops that go over all of it note them for AdamW. Whatever else writes to the
// tensor makes them unknown.
type extents struct {
	known bool
	most  []float32 // the largest magnitude of each whole block, not scaled; nil if nobody wants it
	least []float32 // the smallest
}

// extentBlock is how many elements share their extents. Of blocks of 256, 1 to 10 %
// may hold a new largest value while a model trains; of those of 1,024, 6 to 40 %.
const extentBlock = 256

func (e *extents) wanted() bool { return e != nil && e.most != nil }

// note takes down the largest magnitudes of x, which begins at element at.
func (e *extents) note(at int, x []float32) {
	for i := 0; i+extentBlock <= len(x); i += extentBlock {
		e.most[(at+i)/extentBlock] = fp8.Amax(x[i : i+extentBlock])
	}
}

// changed forgets the extents of a tensor that is written to.
func (d *device) changed(t *backend.Tensor) {
	if e := d.extents[t.Root()]; e != nil {
		e.known = false
	}
}

// extentsOf are those of the tensors that have any.
func (d *device) extentsOf(list []*backend.Tensor) (found []*extents) {
	for _, t := range list {
		if e := d.extents[t.Root()]; e != nil {
			found = append(found, e)
		}
	}
	return found
}

// forgetting is the kernel of a node that forgets the extents of what it writes.
// AdamW reads its own, and renews them.
func (b *binder) forgetting(n *backend.Node, run kernel) kernel {
	if _, own := n.Op.(*backend.AdamW); own {
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
