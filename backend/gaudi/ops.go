package gaudi

import "octet/backend"

// row holds what this backend knows of a type of op. Each function may be nil.
type row[O backend.Op] struct {
	// build writes the op's nodes. A collective's nodes run before its transfers.
	build func(*builder, O) error
	// lower adds the ops that the device runs instead of the op. Nil keeps the op.
	lower func(lowering, O)
	// transfers returns the transfers that follow the op's nodes.
	transfers func(memory, O) ([]transfer, error)
	// collective marks an op that transfers data between units.
	collective bool
	// ownUnit marks an op that is never part of a larger unit: every collective, and the
	// ops that an update repeats for every tensor. These read small temps that all of
	// them share.
	ownUnit bool
}

// ops holds the row of every op. The files that implement ops add them.
var ops backend.Table[row[backend.Op]]

// implement adds an op that has only nodes.
func implement[O backend.Op](build func(*builder, O) error) struct{} {
	return implementOp(row[O]{build: build})
}

// implementElementwise adds an op on matrices of one shape. Lowering divides their rows if
// they are too large.
func implementElementwise[O backend.Op](build func(*builder, O) error) struct{} {
	return implementOp(row[O]{build: build, lower: func(l lowering, o O) { l.byRows(o) }})
}

// implementOp adds any other op.
func implementOp[O backend.Op](r row[O]) struct{} {
	var op O
	all := row[backend.Op]{collective: r.collective, ownUnit: r.ownUnit || r.collective}
	if r.build != nil {
		all.build = func(b *builder, op backend.Op) error { return r.build(b, op.(O)) }
	}
	if r.lower != nil {
		all.lower = func(l lowering, op backend.Op) { r.lower(l, op.(O)) }
	}
	if r.transfers != nil {
		all.transfers = func(m memory, op backend.Op) ([]transfer, error) { return r.transfers(m, op.(O)) }
	}
	return ops.Add(op, all)
}

// refuse adds an op of mixtures of experts, which has no nodes: see backend.Spec.Experts.
func refuse[O backend.Op]() struct{} {
	return implement(func(b *builder, _ O) error {
		return b.unsupported("an op of mixtures of experts, which has no kernel")
	})
}

var (
	_ = refuse[*backend.Route]()
	_ = refuse[*backend.RouteGrad]()
	_ = refuse[*backend.Gather]()
	_ = refuse[*backend.Combine]()
	_ = refuse[*backend.CombineGrad]()
)

// rowOf returns the row of an op, an empty one for an unknown op.
func rowOf(op backend.Op) row[backend.Op] {
	row, _ := ops.Of(op)
	return row
}

// build writes an op's nodes.
func (b *builder) build(op backend.Op) error {
	row, ok := ops.Of(op)
	switch {
	case !ok:
		return b.unsupported("no kernel for %T; custom ops run on emu, ref and, with CUDA source, on cuda", op)
	case row.build == nil:
		return nil
	}
	return row.build(b, op)
}
