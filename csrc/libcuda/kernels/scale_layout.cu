// scale_layout: a thread per scale, padding included. It writes the block scales of A and B of
// a GEMM as cuBLASLt reads them (libcuda.ScaleMode), and the GEMM's alpha and beta if an
// operand has an outer factor.
#include "octet.cuh"

enum ScaleMode { VEC16_E4M3 = 1, VEC32_E8M0, PER_ROW, VEC128, BLOCK128 };

struct StoredScales {
	const void *from; // as stored: [⌈rows/height⌉][blocks]
	void *to;
	i64 mode, rows, blocks;
	i64 height; // rows of the operand that share a scale
	i64 count;  // scales to write; 0: cuBLASLt reads them as stored

	// find sets the row of the operand and the block of scale i.
	__device__ void find(i64 i, i64 *row, i64 *block) const {
		const i64 wide = (blocks + 3) / 4;
		switch (mode) {
		case PER_ROW: *row = i, *block = 0; return;
		case VEC128: *row = i % rows, *block = i / rows; return;
		case BLOCK128: *row = i / (4 * wide) * 128, *block = i % (4 * wide); return;
		}
		const i64 tile = i / 512, at = i % 512;
		*row = tile / wide * 128 + at / 16 + at / 4 % 4 * 32, *block = tile % wide * 4 + at % 4;
	}
	__device__ void write(i64 i) const {
		i64 row, block;
		find(i, &row, &block);
		const i64 at = row / height * blocks + block;
		const bool padding = row >= rows || block >= blocks;
		if (mode <= VEC32_E8M0)
			((u8 *)to)[i] = padding ? (u8)0 : ((const u8 *)from)[at];
		else
			((float *)to)[i] = padding ? 0.0f : ((const float *)from)[at];
	}
};

struct ScaleLayoutArgs {
	StoredScales a, b;
	const float *outer_a, *outer_b; // null is 1
	f64 beta;
	float *factors; // null: none
	void *scratch;
};

KERNEL(scale_layout, ScaleLayoutArgs, FLAT_THREADS, 1) {
	const i64 i = (i64)blockIdx.x * FLAT_THREADS + threadIdx.x;
	if (i < a.a.count)
		a.a.write(i);
	else if (i - a.a.count < a.b.count)
		a.b.write(i - a.a.count);
	if (i == 0 && a.factors) {
		a.factors[0] = __fmul_rn(a.outer_a ? *a.outer_a : 1.0f, a.outer_b ? *a.outer_b : 1.0f);
		a.factors[1] = (float)a.beta;
	}
}
