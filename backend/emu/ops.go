package emu

import (
	"context"

	"octet/backend"
)

// row holds what this backend knows of a type of op.
type row struct {
	bind func(*binder, *backend.Node) (kernel, error)
	// blockScaled lists the operands, as fields of the op, that the kernel takes with
	// per-row or block scales and with scales in E8M0.
	blockScaled []string
	// keepsExtents marks an op that renews the extents of what it writes.
	keepsExtents bool
}

// ops holds the row of every op. The files that implement ops add them.
var ops backend.Table[row]

// implement adds an op whose kernel cannot fail, neither when it is bound nor when it runs.
func implement[O backend.Op](bind func(*binder, O) func(), blockScaled ...string) struct{} {
	return implementOp(row{blockScaled: blockScaled}, func(b *binder, _ *backend.Node, o O) (kernel, error) {
		return compute(bind(b, o)), nil
	})
}

// implementOp adds any other op, with the properties of r.
func implementOp[O backend.Op](r row, bind func(*binder, *backend.Node, O) (kernel, error)) struct{} {
	var op O
	r.bind = func(b *binder, n *backend.Node) (kernel, error) { return bind(b, n, n.Op.(O)) }
	return ops.Add(op, r)
}

// compute adapts a kernel that cannot fail.
func compute(run func()) kernel {
	return func(context.Context) error { run(); return nil }
}
