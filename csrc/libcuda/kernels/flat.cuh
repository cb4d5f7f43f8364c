// Kernels that ignore rows and columns: a block takes FLAT_ELEMS elements. Reductions of
// a whole matrix store a partial result per block in scratch memory, and a second kernel
// of one block combines these in order.
#pragma once
#include "formats.cuh"

const i64 FLAT_ELEMS = 8192;

// each_flat calls f(row, col, n) for up to 8 elements of a row at a time, which together
// are the block's elements. Without gaps between rows the matrix counts as one row.
template <class F> __device__ inline void each_flat(i64 rows, i64 cols, bool gaps, const F &f) {
	const i64 from = (i64)blockIdx.x * FLAT_ELEMS, end = min(rows * cols, from + FLAT_ELEMS);
	if (!gaps) {
		for (i64 at = from + threadIdx.x * 8; at < end; at += FLAT_THREADS * 8)
			f(0, at, (int)min(8ll, end - at));
		return;
	}
	for (i64 at = from + threadIdx.x; at < end; at += FLAT_THREADS)
		f(at / cols, at % cols, 1);
}

__device__ inline i64 flat_blocks(i64 elems) { return (elems + FLAT_ELEMS - 1) / FLAT_ELEMS; }
