// sum_parts: a block per FLAT_ELEMS elements of out (flat.cuh).
#include "flat.cuh"

struct SumPartsArgs {
	Tensor x, out, at_max;
	i64 rows, cols;             // of x
	i64 part;                   // rows of out
	i64 block_rows, block_cols; // elements that share a scale
	i64 rounded, each, accumulate;
	void *scratch;
};

__device__ inline float rounded_to(int format, float x) { return decode1(format, encode1(format, x, false, 0)); }

// add_parts sums N consecutive elements of a row, which share a scale in each part. No sum is
// contracted to a fused multiply-add, which would round otherwise than other backends. It
// returns the number of rounded sums at the largest value.
template <int N> __device__ inline int add_parts(const SumPartsArgs &a, i64 row, i64 col) {
	const int format = (int)a.x.format, size = size_of(format);
	const i64 across = (a.cols + a.block_cols - 1) / a.block_cols;
	float sum[8] = {};
	for (i64 from = row; from < a.rows; from += a.part) {
		const float scale = a.x.scale && !a.rounded ? a.x.scale[from / a.block_rows * across + col / a.block_cols] : 1.0f;
		float v[8];
		decode8(format, fetch8<true>(a.x.p, offset(from, a.x.ld, col), size, N), v);
#pragma unroll
		for (int i = 0; i < N; i++) {
			const float x = __fmul_rn(v[i], scale);
			sum[i] = from == row ? x : __fadd_rn(sum[i], x);
			if (a.each)
				sum[i] = rounded_to(format, sum[i]);
		}
	}
	int at_max = 0;
	if (a.rounded) {
#pragma unroll
		for (int i = 0; i < N; i++) {
			sum[i] = rounded_to(format, sum[i]);
			at_max += fabsf(sum[i]) == largest_of(format);
			sum[i] = __fmul_rn(sum[i], *a.x.scale);
		}
	}
	float *out = a.out.out() + offset(row, a.out.ld, col);
#pragma unroll
	for (int i = 0; i < N; i++)
		out[i] = a.accumulate ? __fadd_rn(out[i], sum[i]) : sum[i];
	return at_max;
}

KERNEL(sum_parts, SumPartsArgs, FLAT_THREADS, 1) {
	const bool eights = (a.cols | a.block_cols) % 8 == 0;
	const i64 each = eights ? 8 : 1, from = (i64)blockIdx.x * FLAT_ELEMS, end = min(a.part * a.cols, from + FLAT_ELEMS);
	int at_max = 0;
	for (i64 at = from + threadIdx.x * each; at < end; at += FLAT_THREADS * each)
		if (eights)
			at_max += add_parts<8>(a, at / a.cols, at % a.cols);
		else
			at_max += add_parts<1>(a, at / a.cols, at % a.cols);
	if (a.at_max.p) {
		const float count = block_sum((float)at_max);
		if (threadIdx.x == 0 && count > 0.0f)
			atomicAdd(a.at_max.out(), count); // exact below 2^24, so the order does not matter
	}
}
