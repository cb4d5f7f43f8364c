// Column maxima: a block takes a strip of rows and TILE_COLS columns; a second kernel
// reduces the strips.
#pragma once
#include "tile.cuh"

const int STRIP_ROWS = 256; // rows of a block: eight tiles

// Columns holds a thread's maxima of its columns; write reduces them over the block's
// warps and stores the strip's.
struct Columns {
	u32 top[8];

	__device__ Columns() {
#pragma unroll
		for (int j = 0; j < 8; j++)
			top[j] = 0;
	}
	__device__ void fold(const float v[8]) {
#pragma unroll
		for (int j = 0; j < 8; j++)
			top[j] = max(top[j], magnitude(v[j]));
	}
	__device__ void write(float *strip, i64 cols) const {
		__shared__ u32 column_max[TILE_COLS];
		__syncthreads();
		if (threadIdx.x < TILE_COLS)
			column_max[threadIdx.x] = 0;
		__syncthreads();
#pragma unroll
		for (int j = 0; j < 8; j++)
			atomicMax(&column_max[threadIdx.x % 32 * 8 + j], top[j]);
		__syncthreads();
		const i64 col = (i64)blockIdx.y * TILE_COLS + threadIdx.x;
		if (threadIdx.x < TILE_COLS && col < cols)
			strip[blockIdx.x * cols + col] = __uint_as_float(column_max[threadIdx.x]);
	}
};

// each_strip_row calls f(v) with a thread's elements of N operands, row by row; elements
// outside are zero.
template <int N, class F> __device__ inline void each_strip_row(const Tensor *const (&x)[N], i64 rows, i64 cols, const F &f) {
	Tile t(rows, cols, TILE_COLS);
	t.row += blockIdx.x * (STRIP_ROWS - TILE_ROWS);
	for (int i = 0; i < STRIP_ROWS / TILE_ROWS; i++, t.row += TILE_ROWS)
		t.each_row(Operands<N>(x), [&](int, const float v[N][8]) { f(v); });
}

// strips_max returns the maximum of a column over all strips.
__device__ inline u32 strips_max(const float *strips, i64 rows, i64 cols, i64 col) {
	u32 top = 0;
	for (i64 i = 0; i * STRIP_ROWS < rows; i++)
		top = max(top, magnitude(strips[i * cols + col]));
	return top;
}
