package gaudi

import (
	"math"

	"octet/backend"
	"octet/csrc/libsynapse"
)

// cachedAttention is attention over a cache, or from a position that only the
// device knows: two products, with the softmax between them elementwise and in F32.
// It keeps the scores, of which a few queries have few.
//
// What lies in the cache behind the last visible key is multiplied by 0 and must be
// finite: a cache begins with zeros, and holds keys and values afterwards.
func (b *builder) cachedAttention(o *backend.Attention) error {
	h := headsOf(o.Q, o.K, o.V, o.Batch, o.HeadDim)
	q, k, v := h.queries(b, o.Q), h.keys(b, o.K), h.keys(b, o.V)
	keys := append([]uint64{k.sizes[1]}, q.sizes[1:]...) // of the scores
	scores := b.mul(b.batchGemm(q, k, true, libsynapse.F32, keys), b.constant(h.scale()))

	visible := b.visible(o, keys)
	// An invisible score takes no part, and a NaN among the visible becomes that of
	// the sum, whatever the maximum makes of it.
	top := b.maximum(b.where(visible, scores, b.constant(-math.MaxFloat32)), 0)
	e := b.where(visible, b.exp(b.sub(scores, top)), b.constant(0))
	sum := b.sum(e)
	p := b.cast(b.mul(e, b.div(b.constant(1), sum)), h.typ)
	b.store(o.Out, h.joined(b, b.batchGemm(p, v, false, libsynapse.F32, q.sizes)))
	if o.LSE != nil {
		b.out(o.LSE, b.add(top, b.log(sum)))
	}
	return nil
}

// visible is the mask of the keys that each query sees, of the rank of the scores.
func (b *builder) visible(o *backend.Attention, scores []uint64) value {
	along := func(dim int) value { // numbers its elements
		sizes := make([]uint64, len(scores))
		for d := range sizes {
			sizes[d] = 1
		}
		sizes[dim] = scores[dim]
		return b.counting(int(scores[dim]), sizes...)
	}
	last := along(1)
	if o.Control != nil {
		last = b.add(last, b.position(o.Control))
	}
	return b.lessEqual(along(0), last)
}

// batchGemm is the product of x {k, m, …} and y {n, k, …}, or y {k, n, …}
// transposed, in every further dimension, which may be 1 in y.
func (b *builder) batchGemm(x, y value, transposed bool, typ libsynapse.DataType, sizes []uint64) value {
	return b.node("batch_gemm", libsynapse.GemmParams(false, transposed), typ, sizes, x, y)
}

// cacheWrite chooses between the cache as it is and the new rows, moved to where
// they belong: where they begin is a number on the device, and a slice begins where
// the compiler knows. The cache is read and written whole, as attention reads it.
func (b *builder) cacheWrite(o *backend.CacheWrite) error {
	width, batch := uint64(o.X.Cols()), uint64(o.Batch)
	n, rows := uint64(o.X.Rows())/batch, uint64(o.Cache.Rows())/batch
	x, cache := b.reshape(b.in(o.X), width, n, batch), b.reshape(b.in(o.Cache), width, rows, batch)

	from := b.sub(b.counting(int(rows), 1, rows, 1), b.position(o.Control)) // the row of X
	inside := b.min(b.max(from, b.constant(0)), b.constant(float32(n-1)))
	if n > 1 { // else it repeats
		x = b.gather(x, b.reshape(b.cast(inside, libsynapse.I32), rows))
	}
	b.out(o.Cache, b.where(b.equal(from, inside), x, cache))
	return nil
}
