package gaudi

import (
	"math"

	"octet/backend"
	"octet/csrc/libsynapse"
	"octet/fp8"
)

// heads describes the heads of an attention: kv key heads, each shared by group query
// heads.
type heads struct {
	batch, size, group, kv int
	typ                    libsynapse.DataType // type that the kernels compute in
}

// headsOf returns the heads of an attention. The type is BF16 if queries, keys and values
// are.
func headsOf(q, k, v *backend.Tensor, batch, headDim int) heads {
	h := heads{batch: batch, size: headDim, group: q.Cols() / k.Cols(), kv: k.Cols() / headDim, typ: libsynapse.BF16}
	for _, t := range []*backend.Tensor{q, k, v} {
		if t.DType != fp8.BF16 {
			h.typ = libsynapse.F32
		}
	}
	return h
}

// grouped reports whether heads take two dimensions, as in PyTorch's bridge
// (FusedSDPA.py, is_gqa): with several shared key heads. A single key head is broadcast.
func (h heads) grouped() bool { return h.group > 1 && h.kv > 1 }

// queries returns an operand with the heads of Q: {size, rows, heads, batch}, or {size,
// rows, group, kv, batch}.
func (h heads) queries(b *builder, t *backend.Tensor) value {
	rows := uint64(t.Rows() / h.batch)
	v := b.cast(b.in(t), h.typ)
	if !h.grouped() {
		return b.transpose(b.reshape(v, uint64(h.size), uint64(h.group*h.kv), rows, uint64(h.batch)), 0, 2, 1, 3)
	}
	return b.transpose(b.reshape(v, uint64(h.size), uint64(h.group), uint64(h.kv), rows, uint64(h.batch)), 0, 3, 1, 2, 4)
}

// keys returns an operand with the heads of K and the rank of queries: {size, rows, kv,
// batch}, or {size, rows, 1, kv, batch}.
func (h heads) keys(b *builder, t *backend.Tensor) value {
	rows := uint64(t.Rows() / h.batch)
	v := b.reshape(b.cast(b.in(t), h.typ), uint64(h.size), uint64(h.kv), rows, uint64(h.batch))
	v = b.transpose(v, 0, 2, 1, 3)
	if h.grouped() {
		v = b.reshape(v, uint64(h.size), rows, 1, uint64(h.kv), uint64(h.batch))
	}
	return v
}

// joined is the inverse of queries and of keys: the matrix {heads·size, batch·rows}.
func (h heads) joined(b *builder, v value) value {
	rows := v.sizes[1]
	count := v.elems() / (uint64(h.size) * rows * uint64(h.batch))
	if len(v.sizes) == 5 && v.sizes[2] > 1 {
		v = b.transpose(v, 0, 2, 3, 1, 4)
	} else {
		v = b.transpose(b.reshape(v, uint64(h.size), rows, count, uint64(h.batch)), 0, 2, 1, 3)
	}
	return b.reshape(v, count*uint64(h.size), rows*uint64(h.batch))
}

// ofRows returns the shape of one element per row of a value from queries.
func ofRows(v value) []uint64 {
	return append([]uint64{1}, v.sizes[1:]...)
}

func (h heads) scale() float32 { return float32(1 / math.Sqrt(float64(h.size))) }

// hiddenScore is added to the score of a key that a query does not see: the lowest BF16 value,
// as in Hugging Face's masks. Adding it to a score gives no infinity.
var hiddenScore = -math.Float32frombits(0x7f7f0000)

// mask returns what the kernels add to the scores instead of a causal mask: 0 for the keys
// from start on to the query, else hiddenScore. q is from queries, and the mask has its rank,
// with size 1 for the heads. It is absent if start is nil.
func (h heads) mask(b *builder, start *backend.Tensor, q value) value {
	if start == nil {
		return absent
	}
	rows := q.sizes[1]
	sizes := func(keys, queries, batch uint64) []uint64 {
		list := []uint64{keys, queries, 1, batch}
		if len(q.sizes) == 5 {
			list = []uint64{keys, queries, 1, 1, batch}
		}
		return list
	}
	first := b.cast(b.reshape(b.in(start), sizes(1, rows, uint64(h.batch))...), libsynapse.F32)
	key, query := b.arange(int(rows), sizes(rows, 1, 1)...), b.arange(int(rows), sizes(1, rows, 1)...)
	hidden := b.constant(hiddenScore)
	mask := b.where(b.lessEqual(key, query), b.constant(0), hidden)
	return b.cast(b.where(b.lessEqual(first, key), mask, hidden), h.typ)
}

var _ = implement((*builder).attention)

// attention of a sequence over itself is SynapseAI's kernel that does not store the
// scores (with Start it reads a mask of their size, without heads), with operands and outputs as in PyTorch's bridge (SDPARecompFwd). Besides the
// result it returns, per row, the largest score m in the type of the queries, and linv =
// 1/Σ exp(score − m) in F32. The logarithm of Σ exp(score) is m − log(linv). The bridge's
// use suggests, but no document says, that m is a scaled score and that the sum uses the
// rounded m.
func (b *builder) attention(o *backend.Attention) error {
	if o.Control != nil || o.Q.Rows() != o.K.Rows() {
		return b.cachedAttention(o)
	}
	h := headsOf(o.Q, o.K, o.V, o.Batch, o.HeadDim)
	q, k, v := h.queries(b, o.Q), h.keys(b, o.K), h.keys(b, o.V)
	// No seed, and none of the seven scales of an FP8 attention.
	in := []value{q, k, v, h.mask(b, o.Start, q), absent, absent, absent, absent, absent, absent, absent, absent}
	outs := []value{{typ: h.typ, sizes: q.sizes}}
	if o.LSE != nil {
		outs = append(outs, value{typ: h.typ, sizes: ofRows(q)}, value{typ: libsynapse.F32, sizes: ofRows(q)})
	}
	params := libsynapse.SdpaParams(h.scale(), o.Start == nil, o.LSE == nil)
	outs = b.nodes("sdpa_recomp_fwd_"+h.typ.String(), params, outs, in...)
	b.store(o.Out, h.joined(b, outs[0]))
	if o.LSE != nil {
		b.out(o.LSE, b.sub(b.cast(outs[1], libsynapse.F32), b.log(outs[2])))
	}
	return nil
}

var _ = implement((*builder).attentionGrad)

// attentionGrad computes m and linv from LSE alone, such that they give the same
// probabilities, exp(score − m)·linv: m is LSE rounded to the queries' type, and linv
// corrects the rounding. The forward result is no operand: the bridge passes it only on
// request (PT_HPU_SDPA_SFMX_BWD_V2). The kernel computes DOut·O as Σ P·(DOut·V), which is
// equal.
func (b *builder) attentionGrad(o *backend.AttentionGrad) error {
	h := headsOf(o.Q, o.K, o.V, o.Batch, o.HeadDim)
	q, k, v := h.queries(b, o.Q), h.keys(b, o.K), h.keys(b, o.V)
	lse := b.reshape(b.f32(o.LSE), ofRows(q)...)
	m := b.cast(lse, h.typ)
	linv := b.exp(b.sub(b.cast(m, libsynapse.F32), lse))
	// No seed after m and linv.
	in := []value{h.queries(b, o.DOut), q, k, v, h.mask(b, o.Start, q), m, linv, absent}
	outs := b.nodes("sdpa_recomp_bwd_"+h.typ.String(), libsynapse.SdpaParams(h.scale(), o.Start == nil, false),
		[]value{{typ: h.typ, sizes: q.sizes}, {typ: h.typ, sizes: k.sizes}, {typ: h.typ, sizes: v.sizes}}, in...)
	for i, casts := range [][]backend.Cast{o.DQ, o.DK, o.DV} {
		b.store(casts, h.joined(b, outs[i]))
	}
	return nil
}
