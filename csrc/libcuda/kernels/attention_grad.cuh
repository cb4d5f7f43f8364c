// Shared by the kernels of attention's backward: the rows of a block, and the gradients
// of scores.
#pragma once
#include "attention.cuh"

struct AttentionGradArgs {
	Tensor dout, q, k, v, o, lse, start;
	Casts dq, dk, dv;
	Geometry g;
	float *scratch; // DOut·O, like LSE
};

// copy4 starts to copy a value, or zero.
__device__ inline void copy4(float *to, const float *from, bool inside) {
#ifdef __CUDA_ARCH__
	asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address_of(to)), "l"(from), "r"(inside ? 4 : 0) : "memory");
#else
	*to = inside ? *from : 0.0f;
#endif
}

// Keys is a block of _kv_: KEY_BLOCK keys of a key head. It iterates over the queries of
// all heads that share it, head by head, STEP at a time.
template <int D, int STEP, bool DOCUMENTS> struct Keys {
	i64 key_head, sequence, j0, key;
	int rows, steps, all;

	__device__ Keys(const AttentionGradArgs &a)
		: key_head(blockIdx.x % a.g.key_heads), sequence(blockIdx.x / a.g.key_heads), j0((i64)blockIdx.y * KEY_BLOCK),
		  key(sequence * a.g.keys + j0), rows((int)min((i64)KEY_BLOCK, a.g.keys - j0)),
		  steps((int)(last(a) - j0 + STEP - 1) / STEP), all(steps * (int)a.g.heads_per_key_head()) {}

	// last returns the end of the queries that see a key of the block: the first whose
	// document begins after the block.
	__device__ i64 last(const AttentionGradArgs &a) const {
		i64 high = a.g.queries;
		if (!DOCUMENTS)
			return high;
		i64 low = min(high, j0 + KEY_BLOCK);
		while (low < high) {
			const i64 i = (low + high) / 2;
			if (first_key(a.start, sequence * a.g.queries + i, i) < j0 + KEY_BLOCK)
				low = i + 1;
			else
				high = i;
		}
		return low;
	}

	__device__ const bf16 *k(const AttentionGradArgs &a) const { return (const bf16 *)a.k.p + key * a.k.ld + key_head * D; }
	__device__ const bf16 *v(const AttentionGradArgs &a) const { return (const bf16 *)a.v.p + key * a.v.ld + key_head * D; }

	// Step is a position: the head, and the query relative to the first key. Advancing
	// needs no division by the number of key heads.
	struct Step {
		int head, i0;

		__device__ void advance(const Keys &b) {
			i0 += STEP;
			if (i0 == b.steps * STEP)
				i0 = 0, head++;
		}
	};

	__device__ Step first(const AttentionGradArgs &a) const { return {(int)(key_head * a.g.heads_per_key_head()), 0}; }

	// The number of queries of a step, and the address of their rows in a tensor.
	__device__ int n(const AttentionGradArgs &a, const Step &s) const { return (int)min((i64)STEP, a.g.queries - j0 - s.i0); }
	__device__ const bf16 *queries(const AttentionGradArgs &a, const Tensor &x, const Step &s) const {
		return (const bf16 *)x.p + (sequence * a.g.queries + j0 + s.i0) * x.ld + s.head * D;
	}

	// load_vectors starts to copy LSE and DOut·O of a step's queries.
	__device__ void load_vectors(const AttentionGradArgs &a, float *lse, float *dots, const Step &s) const {
		const int i = threadIdx.x % STEP, rows = n(a, s);
		const i64 from = a.g.lse(sequence, s.head, j0 + s.i0 + (i < rows ? i : 0));
		if (threadIdx.x < STEP)
			copy4(lse + i, a.lse.f32() + from, i < rows);
		else if (threadIdx.x < 2 * STEP)
			copy4(dots + i, a.scratch + from, i < rows);
	}

	// to_weights replaces the scores of a warp's keys, of which row is the first, with a
	// step's queries by weights. Rows after the last query are zero in Q and dOut, so
	// they add zero.
	template <int MT> __device__ void to_weights(float (*p)[STEP / 8][4], const AttentionGradArgs &a, const float *lse, int row, const Step &s) const {
		constexpr float scale2 = score_scale<D>() * LOG2E;
		const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
		for (int n = 0; n < STEP / 8; n++) {
			const float2 two = *(const float2 *)(lse + n * 8 + 2 * t);
			const float base[2] = {two.x * LOG2E, two.y * LOG2E};
#pragma unroll
			for (int m = 0; m < MT; m++)
#pragma unroll
				for (int c = 0; c < 4; c++)
					p[m][n][c] = fast_exp2(p[m][n][c] * scale2 - base[c % 2]);
		}
		if (DOCUMENTS)
			mask_documents<MT>(p, a, row, s);
		if (s.i0 >= KEY_BLOCK)
			return; // no query precedes a key
		const int ahead = s.i0 + 2 * t - row - g; // of a thread's first element
#pragma unroll
		for (int m = 0; m < MT; m++)
#pragma unroll
			for (int n = 0; n < STEP / 8; n++)
#pragma unroll
				for (int c = 0; c < 4; c++)
					if (m * 16 + c / 2 * 8 - n * 8 - c % 2 > ahead)
						p[m][n][c] = 0.0f;
	}

	// mask_documents sets the weights of keys before a query's first key to 0.
	template <int MT> __device__ void mask_documents(float (*p)[STEP / 8][4], const AttentionGradArgs &a, int row, const Step &s) const {
		const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, end = n(a, s) - 1;
		const i64 first = j0 + s.i0, query = sequence * a.g.queries + first;
		if (first_key(a.start, query + end, first + end) <= j0 + row)
			return; // nor that of the earlier queries
#pragma unroll
		for (int n = 0; n < STEP / 8; n++)
#pragma unroll
			for (int e = 0; e < 2; e++) {
				const int i = min(n * 8 + 2 * t + e, end);
				const int hidden = first_key(a.start, query + i, first + i) - (int)j0 - row - g;
#pragma unroll
				for (int m = 0; m < MT; m++)
#pragma unroll
					for (int c = 0; c < 2; c++)
						if (m * 16 + c * 8 < hidden)
							p[m][n][2 * c + e] = 0.0f;
			}
	}

	// to_score_grads replaces gradients of weights by gradients of scores, without the
	// score scale.
	template <int MT> __device__ static void to_score_grads(float (*d)[STEP / 8][4], const float (*p)[STEP / 8][4], const float *dots) {
		const int t = threadIdx.x % 4;
#pragma unroll
		for (int n = 0; n < STEP / 8; n++) {
			const float2 dot = *(const float2 *)(dots + n * 8 + 2 * t);
#pragma unroll
			for (int m = 0; m < MT; m++)
#pragma unroll
				for (int c = 0; c < 4; c++)
					d[m][n][c] = p[m][n][c] * (d[m][n][c] - (c % 2 ? dot.y : dot.x));
		}
	}

	// end stores the results. The sheet reuses the operands' memory.
	template <int MT> __device__ void end(const AttentionGradArgs &a, const float (*sum_k)[D / 8][4], const float (*sum_v)[D / 8][4], void *memory, Result::Shared shared[2]) const {
		const int row = threadIdx.x / 32 * MT * 16;
		const Sheet<D> sheet = {(float *)memory};
		float scale[MT][2];
		fill<MT>(scale, 1.0f);
		Result dk(a.dk, a.g.key_heads * D, shared[0]), dv(a.dv, a.g.key_heads * D, shared[1]); // synchronizes
		sheet.template put<MT>(row, sum_v, scale);
		__syncthreads();
		sheet.template store<KEY_BLOCK>(dv, key, rows, key_head * D);
		dv.end();
		fill<MT>(scale, score_scale<D>());
		__syncthreads();
		sheet.template put<MT>(row, sum_k, scale);
		__syncthreads();
		sheet.template store<KEY_BLOCK>(dk, key, rows, key_head * D);
		dk.end();
	}

	template <int MT> __device__ static void fill(float (*scale)[2], float x) {
#pragma unroll
		for (int m = 0; m < MT; m++)
			scale[m][0] = scale[m][1] = x;
	}
};

// GradQueries is a block of _q_: QUERY_BLOCK queries of a head. It iterates over the keys
// that they see, STEP at a time. A warp has MT · 16 queries.
template <int D, int STEP, int MT, bool DOCUMENTS> struct GradQueries {
	i64 head, sequence, i0, query, key_col;
	int rows, keys, begin, steps; // steps [begin, steps)
	float base[MT][2], dot[MT][2]; // of a thread's rows: LSE in log2 units, and DOut·O

	__device__ GradQueries(const AttentionGradArgs &a)
		: head(blockIdx.x % a.g.heads), sequence(blockIdx.x / a.g.heads), i0((i64)(gridDim.y - 1 - blockIdx.y) * QUERY_BLOCK),
		  query(sequence * a.g.queries + i0), key_col(head / a.g.heads_per_key_head() * D), rows((int)min((i64)QUERY_BLOCK, a.g.queries - i0)),
		  keys((int)a.g.keys), begin(start(a, 0) / STEP), steps(((int)min(a.g.keys, i0 + rows) + STEP - 1) / STEP) {
#pragma unroll
		for (int m = 0; m < MT; m++)
#pragma unroll
			for (int i = 0; i < 2; i++) {
				const int r = row() + m * 16 + threadIdx.x % 32 / 4 + 8 * i;
				const i64 from = a.g.lse(sequence, head, i0 + (r < rows ? r : 0));
				base[m][i] = a.lse.f32()[from] * LOG2E, dot[m][i] = a.scratch[from];
			}
	}

	// start returns the first key that a query of the block sees, as in Queries.
	__device__ int start(const AttentionGradArgs &a, int row) const {
		return DOCUMENTS ? first_key(a.start, query + min(row, rows - 1), i0 + min(row, rows - 1)) : 0;
	}
	// row returns the warp's first row.
	__device__ static int row() { return threadIdx.x / 32 * MT * 16; }
	__device__ const bf16 *queries(const Tensor &x) const { return (const bf16 *)x.p + query * x.ld + head * D; }
	// The keys of step at, in K or V.
	__device__ const bf16 *seen(const AttentionGradArgs &a, const Tensor &x, int at) const {
		return (const bf16 *)x.p + (sequence * a.g.keys + at * STEP) * x.ld + key_col;
	}
	__device__ int n(int at) const { return min(STEP, keys - at * STEP); }

	// to_weights replaces scores with the keys of a step by weights.
	__device__ void to_weights(float (*p)[STEP / 8][4], const AttentionGradArgs &a, int at) const {
		constexpr float scale2 = score_scale<D>() * LOG2E;
		const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
		const int j0 = at * STEP - (int)i0; // relative to the first query
#pragma unroll
		for (int m = 0; m < MT; m++)
#pragma unroll
			for (int n = 0; n < STEP / 8; n++)
#pragma unroll
				for (int c = 0; c < 4; c++)
					p[m][n][c] = fast_exp2(p[m][n][c] * scale2 - base[m][c / 2]);
		if (DOCUMENTS && start(a, row() + MT * 16 - 1) > at * STEP)
			mask_documents(p, a, at);
		if (j0 + STEP <= row())
			return; // no query of the warp precedes a key
		const int ahead = row() + g - j0 - 2 * t; // of a thread's first element
#pragma unroll
		for (int m = 0; m < MT; m++)
#pragma unroll
			for (int n = 0; n < STEP / 8; n++)
#pragma unroll
				for (int c = 0; c < 4; c++)
					if (n * 8 + c % 2 - m * 16 - c / 2 * 8 > ahead)
						p[m][n][c] = 0.0f;
	}

	// mask_documents sets the weights of keys before a query's first key to 0.
	__device__ void mask_documents(float (*p)[STEP / 8][4], const AttentionGradArgs &a, int at) const {
		const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
		for (int m = 0; m < MT; m++)
#pragma unroll
			for (int i = 0; i < 2; i++) {
				const int hidden = start(a, row() + m * 16 + g + 8 * i) - at * STEP - 2 * t;
#pragma unroll
				for (int n = 0; n < STEP / 8; n++)
#pragma unroll
					for (int e = 0; e < 2; e++)
						if (n * 8 + e < hidden)
							p[m][n][2 * i + e] = 0.0f;
			}
	}

	// to_score_grads replaces gradients of weights by gradients of scores, without the
	// score scale.
	__device__ void to_score_grads(float (*d)[STEP / 8][4], const float (*p)[STEP / 8][4]) const {
#pragma unroll
		for (int m = 0; m < MT; m++)
#pragma unroll
			for (int n = 0; n < STEP / 8; n++)
#pragma unroll
				for (int c = 0; c < 4; c++)
					d[m][n][c] = p[m][n][c] * (d[m][n][c] - dot[m][c / 2]);
	}

	// end stores the result. The sheet reuses the operands' memory.
	__device__ void end(const AttentionGradArgs &a, const float (*sum)[D / 8][4], void *memory, Result::Shared &shared) const {
		float scale[MT][2];
#pragma unroll
		for (int m = 0; m < MT; m++)
			scale[m][0] = scale[m][1] = score_scale<D>();
		Result dq(a.dq, a.g.heads * D, shared); // synchronizes
		const Sheet<D> sheet = {(float *)memory};
		sheet.template put<MT>(row(), sum, scale);
		__syncthreads();
		sheet.template store<QUERY_BLOCK>(dq, query, rows, head * D);
		dq.end();
	}
};
