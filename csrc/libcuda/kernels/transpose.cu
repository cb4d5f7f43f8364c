// transpose: out [cols, rows] is x [rows, cols], codes unchanged.
#include "tile.cuh"

struct TransposeArgs {
	Tensor x, out;
	i64 rows, cols;
	void *scratch;
};

KERNEL(transpose, TransposeArgs, TILE_THREADS, 2) {
	TransposeBuffer<TILE_COLS> &buffer = transpose_buffer();
	const int size = size_of(a.x.format), groups = TILE_COLS / 8;
	const i64 row0 = (i64)blockIdx.x * TILE_ROWS, end = min(a.cols, ((i64)blockIdx.y + 1) * TILE_SPAN);
	Cast to = {};
	to.out = a.out.p, to.ld = a.out.ld, to.format = a.out.format;
	for (i64 col0 = (i64)blockIdx.y * TILE_SPAN; col0 < end; col0 += TILE_COLS) {
		for (int g = threadIdx.x; g < TILE_ROWS * groups; g += TILE_THREADS) {
			const int r = g / groups, col = g % groups * 8;
			const i64 n = row0 + r < a.rows ? min((i64)8, a.cols - col0 - col) : 0;
			if (n > 0)
				buffer.put(r, col, size, fetch8<true>(a.x.p, offset(row0 + r, a.x.ld, col0 + col), size, (int)n).w);
		}
		__syncthreads();
		buffer.flush(to, (int)row0, (int)col0, (int)a.rows, (int)a.cols);
		__syncthreads();
	}
}
