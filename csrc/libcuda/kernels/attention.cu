// attention_64 and attention_128: causal attention on BF16 tensor cores, for
// heads of 64 and 128. attention: any head and format, a warp for each query and
// head.
//
// The fast kernels follow FlashAttention-2 (Dao, 2023). A block has 128 queries of
// a head and goes through the keys 64 at a time; a warp has 32 of the queries, so
// that what it reads of K and V serves two products: with 16 rows the shared
// memory, 128 bytes a clock, would be busier than the tensor cores. Queries
// and one block of K and of V lie in shared memory (512·D bytes: 64 KiB with
// D = 128, two blocks to a multiprocessor of H100, one of Ada), and the copy of the
// next keys runs during the softmax and the product with V. A thread keeps 128
// sums of the result (D = 128) and 64 scores in registers; __launch_bounds__ asks
// for two blocks, 255 registers each.
//
// Blocks of the last queries, which see the most keys, come first in the grid.
#include "attention.cuh"

struct AttentionArgs {
	Tensor q, k, v, control;
	Casts out;
	Tensor lse;
	Geometry g;
	void *scratch;
};

template <int D> __device__ inline void attend(const AttentionArgs &a, Result::Shared &shared) {
	const int MT = 2, N = 64, THREADS = 128;
	DYNAMIC_SHARED(bf16, memory);
	const BF16Tile<D> q = {memory}, k = {memory + QUERY_BLOCK * D}, v = {memory + (QUERY_BLOCK + N) * D};
	const int head = blockIdx.x % (u32)a.g.heads, sequence = blockIdx.x / (u32)a.g.heads;
	const int i0 = (gridDim.y - 1 - blockIdx.y) * QUERY_BLOCK;
	const int rows = min(QUERY_BLOCK, (int)a.g.queries - i0);
	const int keys = (int)a.g.keys;
	const int first = (int)control_position(a.control.i32()) + i0; // position of the block's first query
	const int seen = min(keys, first + rows);                      // by the last one
	const i64 query = sequence * a.g.queries + i0, key = sequence * a.g.keys;
	const i64 key_col = head / a.g.group() * D;
	const bf16 *ks = (const bf16 *)a.k.p + key * a.k.ld + key_col;
	const bf16 *vs = (const bf16 *)a.v.p + key * a.v.ld + key_col;

	const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	constexpr float scale = score_scale<D>(), scale2 = scale * LOG2E;
	const float infinity = __uint_as_float(0x7f800000u);
	float o[MT][D / 8][4], top[MT][2], total[MT][2];
	clear<MT>(o);
#pragma unroll
	for (int m = 0; m < MT; m++)
#pragma unroll
		for (int i = 0; i < 2; i++)
			top[m][i] = -infinity, total[m][i] = 0.0f;

	q.template load<QUERY_BLOCK, THREADS>((const bf16 *)a.q.p + query * a.q.ld + head * D, a.q.ld, rows);
	k.template load<N, THREADS>(ks, a.k.ld, min(N, keys));
	commit();
	for (int j0 = 0; j0 < seen; j0 += N) {
		wait_for<0>();
		__syncthreads(); // K is there, and nobody needs the last V any more
		v.template load<N, THREADS>(vs + (i64)j0 * a.v.ld, a.v.ld, min(N, keys - j0));
		commit();
		float s[MT][N / 8][4];
		clear<MT>(s);
		multiply_rows<D, MT, N>(s, q, warp * MT * 16, k);
		wait_for<0>();
		__syncthreads(); // V is there, and nobody needs K any more
		if (j0 + N < seen) {
			k.template load<N, THREADS>(ks + (i64)(j0 + N) * a.k.ld, a.k.ld, min(N, keys - j0 - N));
			commit();
		}
		// Of a thread's first element: how far its key may move, until it is behind the
		// query, and behind the last key.
		const int ahead = first + warp * MT * 16 + g - j0 - 2 * t, left = keys - j0 - 2 * t;
		if (first + warp * MT * 16 < j0 + N - 1 || keys < j0 + N) {
#pragma unroll
			for (int m = 0; m < MT; m++)
#pragma unroll
				for (int n = 0; n < N / 8; n++)
#pragma unroll
					for (int e = 0; e < 4; e++)
						if (n * 8 + e % 2 - m * 16 - e / 2 * 8 > ahead || n * 8 + e % 2 >= left)
							s[m][n][e] = -infinity;
		}
		// The online softmax, relative to the largest score so far. Four threads
		// have a row; the sum of the weights stays apart until the end.
#pragma unroll
		for (int m = 0; m < MT; m++)
#pragma unroll
			for (int i = 0; i < 2; i++) {
				float most = top[m][i];
#pragma unroll
				for (int n = 0; n < N / 8; n++)
					most = fmaxf(most, fmaxf(s[m][n][2 * i], s[m][n][2 * i + 1]));
				most = fmaxf(most, __shfl_xor_sync(ALL, most, 1));
				most = fmaxf(most, __shfl_xor_sync(ALL, most, 2));
				const float base = most == -infinity ? 0.0f : most * scale2; // nothing seen yet
				const float correction = fast_exp2(top[m][i] * scale2 - base);
				top[m][i] = most;
				float sum = 0.0f;
#pragma unroll
				for (int n = 0; n < N / 8; n++)
#pragma unroll
					for (int e = 2 * i; e < 2 * i + 2; e++) {
						s[m][n][e] = fast_exp2(s[m][n][e] * scale2 - base);
						sum += s[m][n][e];
					}
				total[m][i] = total[m][i] * correction + sum;
#pragma unroll
				for (int n = 0; n < D / 8; n++) {
					o[m][n][2 * i] *= correction;
					o[m][n][2 * i + 1] *= correction;
				}
			}
		multiply_weights<D, MT, N>(o, s, v);
	}

	float factor[MT][2];
#pragma unroll
	for (int m = 0; m < MT; m++)
#pragma unroll
		for (int i = 0; i < 2; i++) {
			float sum = total[m][i];
			sum += __shfl_xor_sync(ALL, sum, 1);
			sum += __shfl_xor_sync(ALL, sum, 2);
			factor[m][i] = 1.0f / sum;
			const int row = (warp * MT + m) * 16 + g + 8 * i;
			if (a.lse.p && t == 0 && row < rows)
				a.lse.out()[a.g.lse(sequence, head, i0 + row)] = top[m][i] * scale + logf(sum);
		}
	wait_for<0>();
	Result out(a.out, a.g.heads * D, shared); // waits: the sheet lies where the operands were
	const Sheet<D> sheet = {(float *)memory};
	sheet.template put<MT>(warp * MT * 16, o, factor);
	__syncthreads();
	sheet.template store<QUERY_BLOCK>(out, query, rows, head * D);
	out.end();
}

KERNEL(attention_64, AttentionArgs, 128, 2) {
	__shared__ Result::Shared shared;
	attend<64>(a, shared);
}

KERNEL(attention_128, AttentionArgs, 128, 2) {
	__shared__ Result::Shared shared;
	attend<128>(a, shared);
}

// A lane takes a key of 32 for the scores, and every 32nd column for the sums.
KERNEL(attention, AttentionArgs, PLAIN_THREADS, 1) {
	__shared__ Result::Shared shared;
	DYNAMIC_SHARED(float, memory);
	const Geometry &g = a.g;
	const int dim = (int)g.head_dim, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	Result out(a.out, g.heads * dim, shared);
	float *q = memory + warp * 2 * dim, *o = q + dim;
	const i64 i = (i64)blockIdx.x * (PLAIN_THREADS / 32) + warp, head = blockIdx.y, sequence = blockIdx.z;
	if (i < g.queries) { // of a whole warp
		const i64 row = sequence * g.queries + i, key = sequence * g.keys, key_col = head / g.group() * dim;
		for (int d = lane; d < dim; d += 32)
			q[d] = load_value(a.q, row, head * dim + d), o[d] = 0.0f;
		__syncwarp();
		const i64 seen = min(g.keys, control_position(a.control.i32()) + i + 1);
		const float infinity = __uint_as_float(0x7f800000u), scale = 1.0f / sqrtf((float)dim);
		float top = -infinity, total = 0.0f;
		for (i64 j0 = 0; j0 < seen; j0 += 32) {
			const float score = j0 + lane < seen ? dot(a.k, key + j0 + lane, key_col, q, dim) * scale : -infinity;
			const float most = fmaxf(top, warp_max(score));
			const float correction = expf(top - most), weight = expf(score - most);
			top = most;
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
