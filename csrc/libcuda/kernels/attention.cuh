// Shared by the forward and the backward of attention.
#pragma once
#include "mma.cuh"
#include "tile.cuh"

const int QUERY_BLOCK = 128;   // queries per block of the kernels by queries
const int KEY_BLOCK = 128;     // keys per block of the backward for K and V
const int PLAIN_THREADS = 128; // of the plain kernels: a warp per row
constexpr float LOG2E = 1.4426950408889634f;

// score_scale returns 1/√D at compile time, which saves a register.
template <int D> __device__ constexpr float score_scale() {
	static_assert(D == 64 || D == 128, "the head sizes of the tensor core kernels");
	return D == 64 ? 0.125f : 0.088388347648318447f;
}

// Geometry is the part of the arguments that both ops share.
struct Geometry {
	i64 batch, queries, keys, heads, key_heads, head_dim;

	__device__ i64 heads_per_key_head() const { return heads / key_heads; }
	// lse returns the index of a query in LSE, [batch · heads, queries].
	__device__ i64 lse(i64 sequence, i64 head, i64 query) const { return (sequence * heads + head) * queries + query; }
};

// first_key returns the first key that query i of a sequence sees, whose row in Q is given.
__device__ inline int first_key(const Tensor &start, i64 row, i64 i) { return max(0, min(start.i32()[row], (int)i)); }

// Sheet is an FP32 result in shared memory, for the casts. A padding of four words per
// row puts eight rows of an accumulator in different banks.
template <int D> struct Sheet {
	float *p;

	__device__ static int pitch() { return D + 4; }

	// put stores a warp's rows, of which row is the first, times scale[m][i].
	template <int MT> __device__ void put(int row, const float (*c)[D / 8][4], const float (*scale)[2]) const {
		const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
		for (int m = 0; m < MT; m++)
#pragma unroll
			for (int n = 0; n < D / 8; n++)
#pragma unroll
				for (int i = 0; i < 2; i++) {
					float *to = p + (row + m * 16 + g + 8 * i) * pitch() + n * 8 + 2 * t;
					to[0] = c[m][n][2 * i] * scale[m][i];
					to[1] = c[m][n][2 * i + 1] * scale[m][i];
				}
	}

	// store stores the first n rows in a result, at (row0, col0). The transpose buffer
	// follows the sheet.
	template <int ROWS> __device__ void store(Result &out, i64 row0, int n, i64 col0) const {
		TransposeBuffer<D> &buffer = *(TransposeBuffer<D> *)(p + ROWS * pitch());
		for (int first = 0; first < n; first += TILE_ROWS)
#pragma unroll 1
			for (int i = 0; i < out.casts.n; i++) {
				const Cast &c = out.casts.cast[i];
				const int size = size_of(c.format);
				const bool transposed = c.flags & TRANSPOSE;
				if (transposed)
					__syncthreads();
				for (int at = threadIdx.x; at < TILE_ROWS * (D / 8); at += blockDim.x) {
					const int r = at / (D / 8), col = at % (D / 8) * 8;
					if (first + r >= n)
						break;
					float v[8];
#pragma unroll
					for (int j = 0; j < 8; j++) {
						v[j] = p[(first + r) * pitch() + col + j];
						out.peak.fold(magnitude(v[j]));
					}
					u32 words[8];
					out.encode(i, v, row0 + first + r, col0 + col, words);
					if (transposed)
						buffer.put(r, col, size, words);
					else
						store8(c.out, (row0 + first + r) * c.ld + col0 + col, size, 8, words);
				}
				if (transposed) {
					__syncthreads();
					buffer.flush(c, (int)row0 + first, (int)col0, (int)row0 + n, (int)col0 + D);
				}
			}
	}
};

struct AttentionArgs {
	Tensor q, k, v, start, control;
	Casts out;
	Tensor lse;
	Geometry g;
	void *scratch;
};

// Queries is a block of the forward: QUERY_BLOCK queries of a head, and the keys that
// they see. The last blocks, which see the most keys, come first in the grid. Only the
// kernels with DOCUMENTS read Start.
template <int D, bool DOCUMENTS> struct Queries {
	int head, sequence, i0, rows, keys;
	int first; // position of the first query
	int seen;  // number of keys that the last query sees
	i64 query, key, key_col;

	__device__ Queries(const AttentionArgs &a)
		: head(blockIdx.x % (u32)a.g.heads), sequence(blockIdx.x / (u32)a.g.heads),
		  i0((gridDim.y - 1 - blockIdx.y) * QUERY_BLOCK), rows(min(QUERY_BLOCK, (int)a.g.queries - i0)), keys((int)a.g.keys),
		  first((int)control_position(a.control.i32()) + i0), seen(min(keys, first + rows)),
		  query(sequence * a.g.queries + i0), key(sequence * a.g.keys), key_col(head / a.g.heads_per_key_head() * D) {}

	// start returns the first key that a query of the block sees; those after the last one
	// count as the last one.
	__device__ int start(const AttentionArgs &a, int row) const {
		return DOCUMENTS ? first_key(a.start, query + min(row, rows - 1), i0 + min(row, rows - 1)) : 0;
	}
	__device__ const bf16 *q(const AttentionArgs &a) const { return (const bf16 *)a.q.p + query * a.q.ld + head * D; }
	__device__ const bf16 *k(const AttentionArgs &a) const { return (const bf16 *)a.k.p + key * a.k.ld + key_col; }
	__device__ const bf16 *v(const AttentionArgs &a) const { return (const bf16 *)a.v.p + key * a.v.ld + key_col; }
};

// Softmax is the online softmax of MT · 16 rows of a warp, four threads per row, relative
// to the maximum score so far. The four partial sums of the weights are added at the end.
template <int D, int MT> struct Softmax {
	float top[MT][2], total[MT][2];

	__device__ Softmax() {
#pragma unroll
		for (int m = 0; m < MT; m++)
#pragma unroll
			for (int i = 0; i < 2; i++)
				top[m][i] = -infinity(), total[m][i] = 0.0f;
	}
	__device__ static float infinity() { return __uint_as_float(0x7f800000u); }

	// mask sets the scores of keys after a query, after the last key, or of other
	// documents, to -inf, in a block of N keys from j0. row is the warp's first.
	template <int N, bool DOCUMENTS> __device__ static void mask(float (*s)[N / 8][4], const AttentionArgs &a, const Queries<D, DOCUMENTS> &b, int row, int j0) {
		if (DOCUMENTS && b.start(a, row + MT * 16 - 1) > j0)
			mask_documents<N>(s, a, b, row, j0);
		if (b.first + row >= j0 + N - 1 && b.keys >= j0 + N)
			return;
		const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
		// For a thread's first element: the maximum offsets of visible and of valid keys.
		const int ahead = b.first + row + g - j0 - 2 * t, left = b.keys - j0 - 2 * t;
#pragma unroll
		for (int m = 0; m < MT; m++)
#pragma unroll
			for (int n = 0; n < N / 8; n++)
#pragma unroll
				for (int e = 0; e < 4; e++)
					if (n * 8 + e % 2 - m * 16 - e / 2 * 8 > ahead || n * 8 + e % 2 >= left)
						s[m][n][e] = -infinity();
	}

	template <int N, bool DOCUMENTS> __device__ static void mask_documents(float (*s)[N / 8][4], const AttentionArgs &a, const Queries<D, DOCUMENTS> &b, int row, int j0) {
		const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
		for (int m = 0; m < MT; m++)
#pragma unroll
			for (int i = 0; i < 2; i++) {
				const int hidden = b.start(a, row + m * 16 + g + 8 * i) - j0 - 2 * t;
#pragma unroll
				for (int n = 0; n < N / 8; n++)
#pragma unroll
					for (int e = 0; e < 2; e++)
						if (n * 8 + e < hidden)
							s[m][n][2 * i + e] = -infinity();
			}
	}

	// to_weights replaces scores by weights. Sums of earlier weights must be multiplied
	// by correction.
	template <int N> __device__ void to_weights(float (*s)[N / 8][4], float (*correction)[2]) {
		constexpr float scale2 = score_scale<D>() * LOG2E;
#pragma unroll
		for (int m = 0; m < MT; m++)
#pragma unroll
			for (int i = 0; i < 2; i++) {
				float highest = top[m][i];
#pragma unroll
				for (int n = 0; n < N / 8; n++)
					highest = fmaxf(highest, fmaxf(s[m][n][2 * i], s[m][n][2 * i + 1]));
				highest = fmaxf(highest, __shfl_xor_sync(ALL, highest, 1));
				highest = fmaxf(highest, __shfl_xor_sync(ALL, highest, 2));
				const float base = highest == -infinity() ? 0.0f : highest * scale2; // no key seen yet
				correction[m][i] = fast_exp2(top[m][i] * scale2 - base);
				top[m][i] = highest;
				float sum = 0.0f;
#pragma unroll
				for (int n = 0; n < N / 8; n++)
#pragma unroll
					for (int e = 2 * i; e < 2 * i + 2; e++) {
						s[m][n][e] = fast_exp2(s[m][n][e] * scale2 - base);
						sum += s[m][n][e];
					}
				total[m][i] = total[m][i] * correction[m][i] + sum;
			}
	}

	__device__ static void correct(float (*o)[D / 8][4], const float (*correction)[2]) {
#pragma unroll
		for (int m = 0; m < MT; m++)
#pragma unroll
			for (int n = 0; n < D / 8; n++)
#pragma unroll
				for (int i = 0; i < 4; i++)
					o[m][n][i] *= correction[m][i / 2];
	}

	// end stores the result of a block, and its LSE. The sheet reuses the operands'
	// memory.
	template <bool DOCUMENTS> __device__ void end(const AttentionArgs &a, const Queries<D, DOCUMENTS> &b, const float (*o)[D / 8][4], void *memory, Result::Shared &shared) {
		const int row = threadIdx.x / 32 * MT * 16, g = threadIdx.x % 32 / 4;
		float scale[MT][2];
#pragma unroll
		for (int m = 0; m < MT; m++)
#pragma unroll
			for (int i = 0; i < 2; i++) {
				float sum = total[m][i];
				sum += __shfl_xor_sync(ALL, sum, 1);
				sum += __shfl_xor_sync(ALL, sum, 2);
				scale[m][i] = 1.0f / sum;
				const int r = row + m * 16 + g + 8 * i;
				if (a.lse.p && threadIdx.x % 4 == 0 && r < b.rows)
					a.lse.out()[a.g.lse(b.sequence, b.head, b.i0 + r)] = top[m][i] * score_scale<D>() + logf(sum);
			}
		Result out(a.out, a.g.heads * D, shared); // synchronizes
		const Sheet<D> sheet = {(float *)memory};
		sheet.template put<MT>(row, o, scale);
		__syncthreads();
		sheet.template store<QUERY_BLOCK>(out, b.query, b.rows, b.head * D);
		out.end();
	}
};

// dot returns the dot product of a row of a tensor and a vector in shared memory.
__device__ inline float dot(const Tensor &x, i64 row, i64 col, const float *y, int n) {
	float sum = 0.0f;
	for (int d = 0; d < n; d++)
		sum += load_value(x, row, col + d) * y[d];
	return sum;
}
