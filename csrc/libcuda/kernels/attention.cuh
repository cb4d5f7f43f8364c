// What the forward and the backward of attention share.
#pragma once
#include "mma.cuh"
#include "tile.cuh"

const int QUERY_BLOCK = 128;   // queries of a block of the kernels by queries
const int KEY_BLOCK = 128;     // keys of a block of the backward for K and V
const int PLAIN_THREADS = 128; // of the plain kernels: a warp takes a row
constexpr float LOG2E = 1.4426950408889634f;

// score_scale is 1/√D, for the compiler: a register less.
template <int D> __device__ constexpr float score_scale() {
	static_assert(D == 64 || D == 128, "the sizes of heads on tensor cores");
	return D == 64 ? 0.125f : 0.088388347648318447f;
}

// Geometry is the middle of both ops' arguments.
struct Geometry {
	i64 batch, queries, keys, heads, key_heads, head_dim;

	__device__ i64 group() const { return heads / key_heads; }
	// lse is the place of a query in LSE, [batch · heads, queries].
	__device__ i64 lse(i64 sequence, i64 head, i64 query) const { return (sequence * heads + head) * queries + query; }
};

// Sheet is a result in FP32 in shared memory, from where it goes through its
// casts. Four words between its rows keep eight rows of an accumulator in
// different banks.
template <int D> struct Sheet {
	float *p;

	__device__ static int pitch() { return D + 4; }

	// put stores a warp's rows, of which row is the first, times factor[m][i].
	template <int MT> __device__ void put(int row, const float (*c)[D / 8][4], const float (*factor)[2]) const {
		const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
		for (int m = 0; m < MT; m++)
#pragma unroll
			for (int n = 0; n < D / 8; n++)
#pragma unroll
				for (int i = 0; i < 2; i++) {
					float *to = p + (row + m * 16 + g + 8 * i) * pitch() + n * 8 + 2 * t;
					to[0] = c[m][n][2 * i] * factor[m][i];
					to[1] = c[m][n][2 * i + 1] * factor[m][i];
				}
	}

	// store sends the first n rows to a result, where they begin at (row0, col0).
	// turn lies behind the sheet.
	template <int ROWS> __device__ void store(Result &out, i64 row0, int n, i64 col0) const {
		Turn<D> &turn = *(Turn<D> *)(p + ROWS * pitch());
		for (int first = 0; first < n; first += TILE_ROWS)
#pragma unroll 1
			for (int i = 0; i < out.casts.n; i++) {
				const Cast &c = out.casts.cast[i];
				const int size = size_of(c.format);
				const bool turned = c.flags & TRANSPOSE;
				if (turned)
					__syncthreads();
				for (int at = threadIdx.x; at < TILE_ROWS * (D / 8); at += blockDim.x) {
					const int r = at / (D / 8), col = at % (D / 8) * 8;
					if (first + r >= n)
						break;
					float v[8];
#pragma unroll
					for (int j = 0; j < 8; j++) {
						v[j] = p[(first + r) * pitch() + col + j];
						out.peak.see(magnitude(v[j]));
					}
					u32 words[8];
					out.encode(i, v, row0 + first + r, col0 + col, words);
					if (turned)
						turn.put(r, col, size, words);
					else
						store8(c.out, (row0 + first + r) * c.ld + col0 + col, size, 8, words);
				}
				if (turned) {
					__syncthreads();
					turn.flush(c, (int)row0 + first, (int)col0, (int)row0 + n, (int)col0 + D);
				}
			}
	}
};

struct AttentionArgs {
	Tensor q, k, v, control;
	Casts out;
	Tensor lse;
	Geometry g;
	void *scratch;
};

// Queries are those of a block of the forward, QUERY_BLOCK of a head, and what they
// see. Blocks of the last ones, which see the most keys, come first in the grid.
template <int D> struct Queries {
	int head, sequence, i0, rows, keys;
	int first; // position of the first query
	int seen;  // keys, by the last one
	i64 query, key, key_col;

	__device__ Queries(const AttentionArgs &a)
		: head(blockIdx.x % (u32)a.g.heads), sequence(blockIdx.x / (u32)a.g.heads),
		  i0((gridDim.y - 1 - blockIdx.y) * QUERY_BLOCK), rows(min(QUERY_BLOCK, (int)a.g.queries - i0)), keys((int)a.g.keys),
		  first((int)control_position(a.control.i32()) + i0), seen(min(keys, first + rows)),
		  query(sequence * a.g.queries + i0), key(sequence * a.g.keys), key_col(head / a.g.group() * D) {}

	__device__ const bf16 *q(const AttentionArgs &a) const { return (const bf16 *)a.q.p + query * a.q.ld + head * D; }
	__device__ const bf16 *k(const AttentionArgs &a) const { return (const bf16 *)a.k.p + key * a.k.ld + key_col; }
	__device__ const bf16 *v(const AttentionArgs &a) const { return (const bf16 *)a.v.p + key * a.v.ld + key_col; }
};

// Softmax is the online softmax of MT · 16 rows of a warp, of which four threads
// have one: relative to the largest score so far. The sums of the weights stay apart
// until the end.
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

	// mask takes out the scores of keys that are behind a query, or behind the last
	// key, in a block of N keys from j0 on. row is the warp's first.
	template <int N> __device__ static void mask(float (*s)[N / 8][4], const Queries<D> &b, int row, int j0) {
		if (b.first + row >= j0 + N - 1 && b.keys >= j0 + N)
			return;
		const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
		// Of a thread's first element: how far its key may move.
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

	// weigh makes weights of scores. What was summed up by earlier weights is to be
	// multiplied by correction.
	template <int N> __device__ void weigh(float (*s)[N / 8][4], float (*correction)[2]) {
		constexpr float scale2 = score_scale<D>() * LOG2E;
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
				const float base = most == -infinity() ? 0.0f : most * scale2; // nothing seen yet
				correction[m][i] = fast_exp2(top[m][i] * scale2 - base);
				top[m][i] = most;
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

	// end stores the result of a block, and its LSE. The sheet lies in memory, where
	// the operands were.
	__device__ void end(const AttentionArgs &a, const Queries<D> &b, const float (*o)[D / 8][4], void *memory, Result::Shared &shared) {
		const int row = threadIdx.x / 32 * MT * 16, g = threadIdx.x % 32 / 4;
		float factor[MT][2];
#pragma unroll
		for (int m = 0; m < MT; m++)
#pragma unroll
			for (int i = 0; i < 2; i++) {
				float sum = total[m][i];
				sum += __shfl_xor_sync(ALL, sum, 1);
				sum += __shfl_xor_sync(ALL, sum, 2);
				factor[m][i] = 1.0f / sum;
				const int r = row + m * 16 + g + 8 * i;
				if (a.lse.p && threadIdx.x % 4 == 0 && r < b.rows)
					a.lse.out()[a.g.lse(b.sequence, b.head, b.i0 + r)] = top[m][i] * score_scale<D>() + logf(sum);
			}
		Result out(a.out, a.g.heads * D, shared); // waits
		const Sheet<D> sheet = {(float *)memory};
		sheet.template put<MT>(row, o, factor);
		__syncthreads();
		sheet.template store<QUERY_BLOCK>(out, b.query, b.rows, b.head * D);
		out.end();
	}
};

// dot is the product of a row of a tensor and a vector in shared memory.
__device__ inline float dot(const Tensor &x, i64 row, i64 col, const float *y, int n) {
	float sum = 0.0f;
	for (int d = 0; d < n; d++)
		sum += load_value(x, row, col + d) * y[d];
	return sum;
}
