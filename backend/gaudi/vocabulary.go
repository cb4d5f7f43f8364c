package gaudi

import (
	"octet/backend"
	"octet/csrc/libsynapse"
)

// A rank of several may hold a part of the vocabulary: rows of the table, columns of the logits. The
// graph is the same on all ranks, so it computes from step.control which part the rank has. F32 holds
// these integers, which are below 2^24, exactly.

// rankWord is the word of step.control that holds the index of this rank.
const rankWord = 9

// firstOf returns the index in the whole vocabulary of the first of this rank's n elements, as a scalar.
func (b *builder) firstOf(split backend.Group, control *backend.Tensor, n int) value {
	index := b.quotient(b.cast(b.intWord(control, rankWord), libsynapse.F32), split.Stride)
	// Split.Index(Rank): the remainder by Size
	index = b.sub(index, b.mul(b.quotient(index, split.Size), b.constant(float32(split.Size))))
	return b.mul(index, b.constant(float32(n)))
}

// quotient returns ⌊x/n⌋ of an integer x ≥ 0. The half keeps the rounded product away from integers.
func (b *builder) quotient(x value, n int) value {
	if n == 1 {
		return x
	}
	return b.floor(b.mul(b.add(x, b.constant(0.5)), b.constant(1/float32(n))))
}

// ownIndexes returns the index of each id in this rank's part, of n elements, as the list that lookup
// kernels take, and the mask {1, ids} of the ids that the part has. The other ids have indexes spread
// over the part: many equal ones could take a kernel longer.
func (b *builder) ownIndexes(ids *backend.Tensor, n int, split backend.Group, control *backend.Tensor) (list, own value) {
	count := ids.Elems()
	spread := make([]float32, count)
	for i := range spread {
		spread[i] = float32(i % n)
	}
	local := b.sub(b.cast(b.indexes(ids), libsynapse.F32), b.firstOf(split, control, n))
	own = b.within(local, n)
	list = b.cast(b.where(own, local, b.table(spread, uint64(count))), libsynapse.I32)
	return list, b.reshape(own, 1, uint64(count))
}

// within returns the mask of the integers from 0 to n−1.
func (b *builder) within(x value, n int) value {
	return b.equal(x, b.min(b.max(x, b.constant(0)), b.constant(float32(n-1))))
}
