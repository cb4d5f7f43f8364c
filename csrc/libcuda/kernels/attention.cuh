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
						out.top = max(out.top, magnitude(v[j]));
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

// dot is the product of a row of a tensor and a vector in shared memory.
__device__ inline float dot(const Tensor &x, i64 row, i64 col, const float *y, int n) {
	float sum = 0.0f;
	for (int d = 0; d < n; d++)
		sum += load_value(x, row, col + d) * y[d];
	return sum;
}
