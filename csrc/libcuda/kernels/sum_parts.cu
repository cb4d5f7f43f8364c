// sum_parts: a block per FLAT_ELEMS elements of out (flat.cuh).
#include "flat.cuh"

struct SumPartsArgs {
	Tensor x, out;
	i64 rows, cols;             // of x
	i64 part;                   // rows of out
	i64 block_rows, block_cols; // elements that share a scale
	void *scratch;
};

// add_parts sums N consecutive elements of a row, which share a scale in each part. No sum is
// contracted to a fused multiply-add, which would round otherwise than other backends.
template <int N> __device__ inline void add_parts(const SumPartsArgs &a, i64 row, i64 col) {
	const int format = (int)a.x.format, size = size_of(format);
	const i64 across = (a.cols + a.block_cols - 1) / a.block_cols;
	float sum[8] = {};
	for (i64 from = row; from < a.rows; from += a.part) {
		const float scale = a.x.scale ? a.x.scale[from / a.block_rows * across + col / a.block_cols] : 1.0f;
		float v[8];
		decode8(format, fetch8<true>(a.x.p, offset(from, a.x.ld, col), size, N), v);
#pragma unroll
		for (int i = 0; i < N; i++) {
			const float x = __fmul_rn(v[i], scale);
			sum[i] = from == row ? x : __fadd_rn(sum[i], x);
		}
	}
	float *out = a.out.out() + offset(row, a.out.ld, col);
#pragma unroll
	for (int i = 0; i < N; i++)
		out[i] = sum[i];
}

KERNEL(sum_parts, SumPartsArgs, FLAT_THREADS, 1) {
	const bool eights = (a.cols | a.block_cols) % 8 == 0;
	const i64 each = eights ? 8 : 1, from = (i64)blockIdx.x * FLAT_ELEMS, end = min(a.part * a.cols, from + FLAT_ELEMS);
	for (i64 at = from + threadIdx.x * each; at < end; at += FLAT_THREADS * each)
		if (eights)
			add_parts<8>(a, at / a.cols, at % a.cols);
		else
			add_parts<1>(a, at / a.cols, at % a.cols);
}
