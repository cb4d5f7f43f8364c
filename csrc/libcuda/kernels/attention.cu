// attention_64 and attention_128: causal attention on BF16 tensor cores by mma.sync, for
// heads of 64 and 128; attention_wgmma.cu has Hopper's. attention: any head size and
// format, a warp per query and head. attention_documents_64 and _128 are for operands Start:
// they begin at the block of the first key that a query of the block sees.
//
// The fast kernels follow FlashAttention-2 (Dao, 2023). A block has 128 queries of a head
// and iterates over the keys, 64 at a time. A warp has 32 queries, so that each load of K
// and V feeds two MMAs: with 16 rows, shared memory, 128 bytes per clock, would be the
// bottleneck. Queries and one block of K and of V lie in shared memory (512·D bytes: 64
// KiB with D = 128, two blocks per multiprocessor on H100, one on Ada). The copy of the
// next keys overlaps with softmax and the GEMM with V. A thread keeps 128 accumulators of
// the result (D = 128) and 64 scores in registers; __launch_bounds__ allows two blocks
// with 255 registers per thread.
#include "attention.cuh"

template <int D, bool DOCUMENTS> __device__ inline void attend(const AttentionArgs &a, Result::Shared &shared) {
	const int MT = 2, N = 64, THREADS = 128;
	DYNAMIC_SHARED(bf16, memory);
	const BF16Tile<D> q = {memory}, k = {memory + QUERY_BLOCK * D}, v = {memory + (QUERY_BLOCK + N) * D};
	const Queries<D, DOCUMENTS> b(a);
	const bf16 *ks = b.k(a), *vs = b.v(a);
	const int row = threadIdx.x / 32 * MT * 16, from = b.start(a, 0) / N * N;
	Softmax<D, MT> softmax;
	float o[MT][D / 8][4];
	clear<MT>(o);

	q.template load<QUERY_BLOCK, THREADS>(b.q(a), a.q.ld, b.rows);
	k.template load<N, THREADS>(ks + (i64)from * a.k.ld, a.k.ld, min(N, b.keys - from));
	commit();
	for (int j0 = from; j0 < b.seen; j0 += N) {
		wait_for<0>();
		__syncthreads(); // K is loaded, and no thread reads the last V
		v.template load<N, THREADS>(vs + (i64)j0 * a.v.ld, a.v.ld, min(N, b.keys - j0));
		commit();
		float s[MT][N / 8][4], correction[MT][2];
		clear<MT>(s);
		multiply_rows<D, MT, N>(s, q, row, k);
		wait_for<0>();
		__syncthreads(); // V is loaded, and no thread reads K
		if (j0 + N < b.seen) {
			k.template load<N, THREADS>(ks + (i64)(j0 + N) * a.k.ld, a.k.ld, min(N, b.keys - j0 - N));
			commit();
		}
		softmax.template mask<N>(s, a, b, row, j0);
		softmax.template to_weights<N>(s, correction);
		softmax.correct(o, correction);
		multiply_weights<D, MT, N>(o, s, v);
	}
	wait_for<0>();
	softmax.end(a, b, o, memory, shared);
}

KERNEL(attention_64, AttentionArgs, 128, 2) {
	__shared__ Result::Shared shared;
	attend<64, false>(a, shared);
}

KERNEL(attention_documents_64, AttentionArgs, 128, 2) {
	__shared__ Result::Shared shared;
	attend<64, true>(a, shared);
}

KERNEL(attention_128, AttentionArgs, 128, 2) {
	__shared__ Result::Shared shared;
	attend<128, false>(a, shared);
}

KERNEL(attention_documents_128, AttentionArgs, 128, 2) {
	__shared__ Result::Shared shared;
	attend<128, true>(a, shared);
}

// Lanes split the scores by key and the sums by column.
KERNEL(attention, AttentionArgs, PLAIN_THREADS, 1) {
	__shared__ Result::Shared shared;
	DYNAMIC_SHARED(float, memory);
	const Geometry &g = a.g;
	const int dim = (int)g.head_dim, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	Result out(a.out, g.heads * dim, shared);
	float *q = memory + warp * 2 * dim, *o = q + dim;
	const i64 i = (i64)blockIdx.x * (PLAIN_THREADS / 32) + warp, head = blockIdx.y, sequence = blockIdx.z;
	if (i < g.queries) { // uniform in a warp
		const i64 row = sequence * g.queries + i, key = sequence * g.keys, key_col = head / g.heads_per_key_head() * dim;
		for (int d = lane; d < dim; d += 32)
			q[d] = load_value(a.q, row, head * dim + d), o[d] = 0.0f;
		__syncwarp();
		const i64 seen = min(g.keys, control_position(a.control.i32()) + i + 1);
		const float infinity = __uint_as_float(0x7f800000u), scale = 1.0f / sqrtf((float)dim);
		float top = -infinity, total = 0.0f;
		for (i64 j0 = a.start.p ? first_key(a.start, row, i) : 0; j0 < seen; j0 += 32) {
			const float score = j0 + lane < seen ? dot(a.k, key + j0 + lane, key_col, q, dim) * scale : -infinity;
			const float highest = fmaxf(top, warp_max(score));
			const float correction = expf(top - highest), weight = expf(score - highest);
			top = highest;
			total = total * correction + warp_sum(weight);
			for (int d = lane; d < dim; d += 32)
				o[d] *= correction;
			const int n = (int)min(32ll, seen - j0);
			for (int l = 0; l < n; l++) {
				const float w = __shfl_sync(ALL, weight, l);
				for (int d = lane; d < dim; d += 32)
					o[d] += w * load_value(a.v, key + j0 + l, key_col + d);
			}
		}
		for (int d = lane; d < dim; d += 32)
			out.store1(o[d] / total, row, head * dim + d);
		if (a.lse.p && lane == 0)
			a.lse.out()[g.lse(sequence, head, i)] = top + logf(total);
	}
	out.end();
}
