package gaudi

import (
	"math"

	"octet/backend"
	"octet/csrc/libsynapse"
)

// cachedAttention computes attention over a KV cache, or from a position known only to
// the device: two batched GEMMs with an elementwise F32 softmax between them. It stores
// the scores, which are few for a few queries.
//
// Cache rows after the last visible key are multiplied by 0 and must be finite. A cache
// starts as zeros, and then holds keys and values.
func (b *builder) cachedAttention(o *backend.Attention) error {
	h := headsOf(o.Q, o.K, o.V, o.Batch, o.HeadDim)
	q, k, v := h.queries(b, o.Q), h.keys(b, o.K), h.keys(b, o.V)
	keys := append([]uint64{k.sizes[1]}, q.sizes[1:]...) // shape of the scores
	scores := b.mul(b.batchGemm(q, k, true, libsynapse.F32, keys), b.constant(h.scale()))

	visible := b.visible(o, keys)
	// Invisible scores do not count. The sum keeps a NaN among the visible scores, even
	// if the maximum loses it.
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

// visible returns the mask of the keys that each query sees, with the rank of the scores.
func (b *builder) visible(o *backend.Attention, scores []uint64) value {
	along := func(dim int) value { // indexes along a dimension
		sizes := make([]uint64, len(scores))
		for d := range sizes {
			sizes[d] = 1
		}
		sizes[dim] = scores[dim]
		return b.arange(int(scores[dim]), sizes...)
	}
	last := along(1)
	if o.Control != nil {
		last = b.add(last, b.position(o.Control))
	}
	return b.lessEqual(along(0), last)
}

// batchGemm returns the batched GEMM of x {k, m, …} and y {n, k, …}, or y {k, n, …}
// transposed. In the further dimensions y may have size 1.
func (b *builder) batchGemm(x, y value, transposed bool, typ libsynapse.DataType, sizes []uint64) value {
	return b.node("batch_gemm", libsynapse.GemmParams(false, transposed), typ, sizes, x, y)
}

var _ = implement((*builder).cacheWrite)

// cacheWrite selects, per row, between the cache and the new rows, gathered to their
// positions. The first row is known only to the device, and a slice needs bounds at
// compile time. The cache is read and written whole, as attention reads it.
func (b *builder) cacheWrite(o *backend.CacheWrite) error {
	width, batch := uint64(o.X.Cols()), uint64(o.Batch)
	n, rows := uint64(o.X.Rows())/batch, uint64(o.Cache.Rows())/batch
	x, cache := b.reshape(b.in(o.X), width, n, batch), b.reshape(b.in(o.Cache), width, rows, batch)

	quantized := o.X.DType.IsQuantized()
	if quantized { // the selecting kernels do not take codes; BF16 holds their values
		x, cache = b.cast(x, libsynapse.BF16), b.cast(cache, libsynapse.BF16)
	}
	from := b.sub(b.arange(int(rows), 1, rows, 1), b.position(o.Control)) // row of X for each row of the cache
	inside := b.min(b.max(from, b.constant(0)), b.constant(float32(n-1)))
	if n > 1 { // else X is broadcast
		x = b.gather(x, b.reshape(b.cast(inside, libsynapse.I32), rows))
	}
	joined := b.where(b.equal(from, inside), x, cache)
	if quantized {
		b.store([]backend.Cast{{Out: o.Cache}}, joined)
		return nil
	}
	b.out(o.Cache, joined)
	return nil
}
