// The backward of attention, in three launches: attention_grad_dot computes the dot
// products DOut·O of all rows, attention_grad_kv the gradients of K and V,
// attention_grad_q that of Q. _64 and _128 use BF16 tensor cores for heads of 64 and 128;
// the others support any head size and format, with a warp per row and head.
//
// Every sum has one owner and a fixed order, without atomic additions. The price is that
// probabilities are computed twice: seven GEMMs instead of FlashAttention-2's five.
//
// A block of _kv_ has 128 keys of a key head, and iterates over the queries of all heads
// that share it, head by head, 32 at a time. It computes the transposed scores K·Qᵀ: a
// warp's weights are then in the registers where the GEMMs with dOut and Q need them. dK
// and dV take 128 of a thread's registers (a warp has 16 keys with D = 128, 32 with D =
// 64). Shared memory: K and V, two alternating stages of Q and dOut, 768·D + 512 bytes:
// 96.5 KiB with D = 128, which fits Ada, too.
//
// _documents_ kernels are for operands Start: they leave out steps without a visible pair.
//
// A block of _q_ has 128 queries, 32 per warp, and iterates over the keys that they see,
// 32 at a time, with two stages of K and V: 768·D bytes.
#include "attention_grad.cuh"

KERNEL(attention_grad_dot, AttentionGradArgs, FLAT_THREADS, 1) {
	const i64 task = (i64)blockIdx.x * (FLAT_THREADS / 32) + threadIdx.x / 32;
	const i64 row = task / a.g.heads, head = task % a.g.heads;
	if (row >= a.g.batch * a.g.queries)
		return; // a whole warp
	float sum = 0.0f;
	for (i64 d = threadIdx.x % 32 * 8; d < a.g.head_dim; d += 256) {
		float x[8], y[8];
		const int n = (int)min(8ll, a.g.head_dim - d);
		const Eight dout = fetch8(a.dout, row, head * a.g.head_dim + d, n), o = fetch8(a.o, row, head * a.g.head_dim + d, n);
		values8(a.dout, dout, x);
		values8(a.o, o, y);
#pragma unroll
		for (int i = 0; i < 8; i++)
			sum += x[i] * y[i];
	}
	sum = warp_sum(sum);
	if (threadIdx.x % 32 == 0)
		a.scratch[a.g.lse(row / a.g.queries, head, row % a.g.queries)] = sum;
}

// ---- dK and dV ----

const int STEP = 32; // queries, or keys, of a stage

template <int D, int WARPS, bool DOCUMENTS> __device__ inline void grad_keys(const AttentionGradArgs &a, Result::Shared shared[2]) {
	const int MT = KEY_BLOCK / WARPS / 16, THREADS = WARPS * 32;
	DYNAMIC_SHARED(bf16, memory);
	const BF16Tile<D> k = {memory}, v = {memory + KEY_BLOCK * D};
	bf16 *stages = memory + 2 * KEY_BLOCK * D; // Q, then dOut, of each stage
	float *vectors = (float *)(stages + 4 * STEP * D); // LSE, then DOut·O
	const Keys<D, STEP, DOCUMENTS> b(a);
	const int row = threadIdx.x / 32 * MT * 16;

	const auto load = [&](int at, const typename Keys<D, STEP, DOCUMENTS>::Step &s) {
		const int n = b.n(a, s), stage = at % 2;
		const BF16Tile<D> q = {stages + stage * 2 * STEP * D}, dout = {stages + (stage * 2 + 1) * STEP * D};
		q.template load<STEP, THREADS>(b.queries(a, a.q, s), a.q.ld, n);
		dout.template load<STEP, THREADS>(b.queries(a, a.dout, s), a.dout.ld, n);
		b.load_vectors(a, vectors + stage * 2 * STEP, vectors + (stage * 2 + 1) * STEP, s);
		commit();
	};

	float sum_k[MT][D / 8][4], sum_v[MT][D / 8][4];
	clear<MT>(sum_k);
	clear<MT>(sum_v);
	k.template load<KEY_BLOCK, THREADS>(b.k(a), a.k.ld, b.rows);
	v.template load<KEY_BLOCK, THREADS>(b.v(a), a.v.ld, b.rows);
	typename Keys<D, STEP, DOCUMENTS>::Step now, next = b.first(a);
	load(0, next);
	for (int at = 0; at < b.all; at++) {
		wait_for<0>();
		__syncthreads(); // the stage is loaded, and no thread reads the other one
		now = next;
		next.advance(b);
		if (at + 1 < b.all)
			load(at + 1, next);
		const int stage = at % 2;
		const BF16Tile<D> q = {stages + stage * 2 * STEP * D}, dout = {stages + (stage * 2 + 1) * STEP * D};
		const float *lse = vectors + stage * 2 * STEP, *dots = lse + STEP;

		float p[MT][STEP / 8][4], d[MT][STEP / 8][4];
		clear<MT>(p);
		clear<MT>(d);
		multiply_rows<D, MT, STEP>(p, k, row, q);
		multiply_rows<D, MT, STEP>(d, v, row, dout);
		b.template to_weights<MT>(p, a, lse, row, now);
		b.template to_score_grads<MT>(d, p, dots);
		multiply_weights<D, MT, STEP>(sum_v, p, dout);
		multiply_weights<D, MT, STEP>(sum_k, d, q);
	}
	b.template end<MT>(a, sum_k, sum_v, memory, shared);
}

KERNEL(attention_grad_kv_64, AttentionGradArgs, 128, 2) {
	__shared__ Result::Shared shared[2];
	grad_keys<64, 4, false>(a, shared);
}

KERNEL(attention_grad_kv_documents_64, AttentionGradArgs, 128, 2) {
	__shared__ Result::Shared shared[2];
	grad_keys<64, 4, true>(a, shared);
}

KERNEL(attention_grad_kv_128, AttentionGradArgs, 256, 1) {
	__shared__ Result::Shared shared[2];
	grad_keys<128, 8, false>(a, shared);
}

KERNEL(attention_grad_kv_documents_128, AttentionGradArgs, 256, 1) {
	__shared__ Result::Shared shared[2];
	grad_keys<128, 8, true>(a, shared);
}

// ---- dQ ----

template <int D, bool DOCUMENTS> __device__ inline void grad_queries(const AttentionGradArgs &a, Result::Shared &shared) {
	const int MT = 2, THREADS = 128;
	DYNAMIC_SHARED(bf16, memory);
	const BF16Tile<D> q = {memory}, dout = {memory + QUERY_BLOCK * D};
	bf16 *stages = memory + 2 * QUERY_BLOCK * D; // K, then V, of each stage
	const GradQueries<D, STEP, MT, DOCUMENTS> b(a);

	const auto load = [&](int at) {
		const int stage = at % 2;
		const BF16Tile<D> k = {stages + stage * 2 * STEP * D}, v = {stages + (stage * 2 + 1) * STEP * D};
		k.template load<STEP, THREADS>(b.seen(a, a.k, at), a.k.ld, b.n(at));
		v.template load<STEP, THREADS>(b.seen(a, a.v, at), a.v.ld, b.n(at));
		commit();
	};

	float sum[MT][D / 8][4];
	clear<MT>(sum);
	q.template load<QUERY_BLOCK, THREADS>(b.queries(a.q), a.q.ld, b.rows);
	dout.template load<QUERY_BLOCK, THREADS>(b.queries(a.dout), a.dout.ld, b.rows);
	load(b.begin);
	for (int at = b.begin; at < b.steps; at++) {
		wait_for<0>();
		__syncthreads(); // the stage is loaded, and no thread reads the other one
		if (at + 1 < b.steps)
			load(at + 1);
		const int stage = at % 2;
		const BF16Tile<D> k = {stages + stage * 2 * STEP * D}, v = {stages + (stage * 2 + 1) * STEP * D};

		float p[MT][STEP / 8][4], d[MT][STEP / 8][4];
		clear<MT>(p);
		clear<MT>(d);
		multiply_rows<D, MT, STEP>(p, q, b.row(), k);
		multiply_rows<D, MT, STEP>(d, dout, b.row(), v);
		b.to_weights(p, a, at);
		b.to_score_grads(d, p);
		multiply_weights<D, MT, STEP>(sum, d, k);
	}
	b.end(a, sum, memory, shared);
}

KERNEL(attention_grad_q_64, AttentionGradArgs, 128, 2) {
	__shared__ Result::Shared shared;
	grad_queries<64, false>(a, shared);
}

KERNEL(attention_grad_q_documents_64, AttentionGradArgs, 128, 2) {
	__shared__ Result::Shared shared;
	grad_queries<64, true>(a, shared);
}

KERNEL(attention_grad_q_128, AttentionGradArgs, 128, 2) {
	__shared__ Result::Shared shared;
	grad_queries<128, false>(a, shared);
}

KERNEL(attention_grad_q_documents_128, AttentionGradArgs, 128, 2) {
	__shared__ Result::Shared shared;
	grad_queries<128, true>(a, shared);
}

// ---- any head, any format ----

// Weights of a query and a key: the probability, and the gradient of the score without
// the score scale.
struct Weights { float p, d; };

__device__ inline Weights weights(const AttentionGradArgs &a, float score, float dp, i64 at) {
	const float p = expf(score / sqrtf((float)a.g.head_dim) - a.lse.f32()[at]);
	return {p, p * (dp - a.scratch[at])};
}

// Lanes split the weights by query and the sums by column.
KERNEL(attention_grad_kv, AttentionGradArgs, PLAIN_THREADS, 1) {
	__shared__ Result::Shared shared[2];
	DYNAMIC_SHARED(float, memory);
	const Geometry &g = a.g;
	const int dim = (int)g.head_dim, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	Result out_k(a.dk, g.key_heads * dim, shared[0]), out_v(a.dv, g.key_heads * dim, shared[1]);
	float *k = memory + warp * 4 * dim, *v = k + dim, *dk = v + dim, *dv = dk + dim;
	const i64 j = (i64)blockIdx.x * (PLAIN_THREADS / 32) + warp, key_head = blockIdx.y, sequence = blockIdx.z;
	if (j < g.keys) { // uniform in a warp
		const i64 row = sequence * g.keys + j;
		for (int d = lane; d < dim; d += 32) {
			k[d] = load_value(a.k, row, key_head * dim + d), v[d] = load_value(a.v, row, key_head * dim + d);
			dk[d] = dv[d] = 0.0f;
		}
		__syncwarp();
		for (i64 head = key_head * g.heads_per_key_head(); head < (key_head + 1) * g.heads_per_key_head(); head++)
			for (i64 i0 = j; i0 < g.queries; i0 += 32) {
				const i64 i = i0 + lane, query = sequence * g.queries + i;
				if (a.start.p && first_key(a.start, sequence * g.queries + i0, i0) > j)
					break; // nor do later queries see the key
				Weights w = {};
				if (i < g.queries && !(a.start.p && first_key(a.start, query, i) > j))
					w = weights(a, dot(a.q, query, head * dim, k, dim), dot(a.dout, query, head * dim, v, dim), g.lse(sequence, head, i));
				const int n = (int)min(32ll, g.queries - i0);
				for (int l = 0; l < n; l++) {
					const Weights of = {__shfl_sync(ALL, w.p, l), __shfl_sync(ALL, w.d, l)};
					const i64 from = sequence * g.queries + i0 + l;
					for (int d = lane; d < dim; d += 32) {
						dv[d] += of.p * load_value(a.dout, from, head * dim + d);
						dk[d] += of.d * load_value(a.q, from, head * dim + d);
					}
				}
			}
		for (int d = lane; d < dim; d += 32) {
			out_k.store1(dk[d] / sqrtf((float)dim), row, key_head * dim + d);
			out_v.store1(dv[d], row, key_head * dim + d);
		}
	}
	out_k.end();
	out_v.end();
}

KERNEL(attention_grad_q, AttentionGradArgs, PLAIN_THREADS, 1) {
	__shared__ Result::Shared shared;
	DYNAMIC_SHARED(float, memory);
	const Geometry &g = a.g;
	const int dim = (int)g.head_dim, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	Result out(a.dq, g.heads * dim, shared);
	float *q = memory + warp * 3 * dim, *dout = q + dim, *dq = dout + dim;
	const i64 i = (i64)blockIdx.x * (PLAIN_THREADS / 32) + warp, head = blockIdx.y, sequence = blockIdx.z;
	if (i < g.queries) { // uniform in a warp
		const i64 row = sequence * g.queries + i, key = sequence * g.keys, key_col = head / g.heads_per_key_head() * dim;
		for (int d = lane; d < dim; d += 32) {
			q[d] = load_value(a.q, row, head * dim + d), dout[d] = load_value(a.dout, row, head * dim + d);
			dq[d] = 0.0f;
		}
		__syncwarp();
		const i64 seen = min(g.keys, i + 1);
		for (i64 j0 = a.start.p ? first_key(a.start, row, i) : 0; j0 < seen; j0 += 32) {
			const i64 j = j0 + lane;
			float weight = 0.0f;
			if (j < seen)
				weight = weights(a, dot(a.k, key + j, key_col, q, dim), dot(a.v, key + j, key_col, dout, dim), g.lse(sequence, head, i)).d;
			const int n = (int)min(32ll, seen - j0);
			for (int l = 0; l < n; l++) {
				const float w = __shfl_sync(ALL, weight, l);
				for (int d = lane; d < dim; d += 32)
					dq[d] += w * load_value(a.k, key + j0 + l, key_col + d);
			}
		}
		for (int d = lane; d < dim; d += 32)
			out.store1(dq[d] / sqrtf((float)dim), row, head * dim + d);
	}
	out.end();
}
