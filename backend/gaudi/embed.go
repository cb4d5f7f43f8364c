package gaudi

import (
	"octet/backend"
	"octet/csrc/libsynapse"
)

// indexes returns an I32 operand as the list {n} that lookup kernels take.
func (b *builder) indexes(t *backend.Tensor) value {
	return b.reshape(b.in(t), uint64(t.Elems()))
}

// gather returns the elements of v along its second dimension at a list of I32 indexes.
// Operands and axis are as in PyTorch's bridge (GatherOperator).
func (b *builder) gather(v, list value) value {
	const dim = 1
	sizes := append([]uint64{}, v.sizes...)
	sizes[dim] = list.elems()
	return b.node("gather_fwd_"+v.typ.String(), libsynapse.GatherParams(dim), v.typ, sizes, v, list)
}

var _ = implement((*builder).embed)

// embed replaces the rows of other parts' ids, which may hold NaN, by zeros.
func (b *builder) embed(o *backend.Embed) error {
	table := b.reshape(b.in(o.Table), uint64(o.Table.Cols()), uint64(o.Table.Rows()))
	if o.Split.All() {
		b.store(o.Out, b.gather(table, b.indexes(o.IDs)))
		return nil
	}
	list, own := b.ownIndexes(o.IDs, o.Table.Rows(), o.Split, o.Control)
	b.store(o.Out, b.where(own, b.gather(table, list), b.zeros(table.typ, 1, 1)))
	return nil
}

var _ = implement((*builder).embedGrad)

// embedGrad passes the gradient and the indexes, as PyTorch's bridge does: the shape of
// the table is a third operand only for dynamic shapes (EmbeddingDenseBwd,
// CreateShapeTensorInput).
func (b *builder) embedGrad(o *backend.EmbedGrad) error {
	rows := o.DTable.Rows()
	sizes := []uint64{uint64(o.DTable.Cols()), uint64(rows)}
	var list value
	dOut := b.wide(o.DOut)
	if o.Split.All() {
		list = b.indexes(o.IDs)
	} else {
		var own value
		list, own = b.ownIndexes(o.IDs, rows, o.Split, o.Control)
		dOut = b.where(own, dOut, b.constant(0))
	}
	grad := b.node("embedding_dense_pt_bwd_f32", libsynapse.EmbeddingGradParams(rows), libsynapse.F32, sizes, dOut, list)
	if o.Accumulate {
		grad = b.add(b.wide(o.DTable), grad)
	}
	b.out(o.DTable, grad)
	return nil
}
