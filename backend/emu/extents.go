package emu

import (
	"context"

	"octet/backend"
	"octet/backend/emu/optimizer"
)

// changed marks the extents of a tensor unknown.
func (d *device) changed(t *backend.Tensor) {
	d.extents[t.Root()].Forget()
}

// invalidating returns a kernel that marks the extents of the tensors that nodes write
// unknown, then calls run. An op that renews extents does so itself, except for a tensor
// of which it writes a view.
func (b *binder) invalidating(run kernel, nodes ...*backend.Node) kernel {
	var written []*optimizer.Extents
	for _, n := range nodes {
		row, _ := ops.Of(n.Op)
		for _, o := range n.Operands() {
			e := b.extents[o.Tensor.Root()]
			renewed := row.keepsExtents && b.extents[o.Tensor] != nil
			if o.Access != backend.In && e != nil && !renewed {
				written = append(written, e)
			}
		}
	}
	if written == nil {
		return run
	}
	return func(ctx context.Context) error {
		for _, e := range written {
			e.Forget()
		}
		return run(ctx)
	}
}
