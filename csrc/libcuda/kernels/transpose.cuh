// Tiles (tile.cuh): their size, and their transposition in shared memory.
#pragma once
#include "formats.cuh"

const int TILE_THREADS = 512;
const int TILE_ROWS = 32;
const int TILE_EACH = TILE_ROWS / (TILE_THREADS / 32); // rows per thread
const int TILE_COLS = 256;

// TransposeBuffer is the shared memory in which a tile of COLS columns is transposed: its
// rows as words of codes. The pitch is one word more than a power of two, so that the 8
// rows that a thread reads, and the 4 × 8 threads of a warp, access different banks.
template <int COLS> struct TransposeBuffer {
	u32 words[TILE_ROWS * (COLS + 1)];

	__device__ static constexpr int pitch(int size) { return COLS * size / 4 + 1; }

	// put stores the codes of 8 columns, from col, in row r of the tile.
	template <int SIZE> __device__ void put(int r, int col, const u32 *w) {
		u32 *to = words + r * pitch(SIZE) + col * SIZE / 4;
#pragma unroll
		for (int i = 0; i < 2 * SIZE; i++)
			to[i] = w[i];
	}
	__device__ void put(int r, int col, int size, const u32 *w) {
		switch (size) {
		case 4: return put<4>(r, col, w);
		case 2: return put<2>(r, col, w);
		default: return put<1>(r, col, w);
		}
	}

	// columns transposes words of 8 rows into 8 codes for each of their columns.
	template <int SIZE> __device__ static void columns(const u32 w[8], u32 column[4 / SIZE][2 * SIZE]) {
		if constexpr (SIZE == 4) {
#pragma unroll
			for (int j = 0; j < 8; j++)
				column[0][j] = w[j];
		} else if constexpr (SIZE == 2) {
#pragma unroll
			for (int j = 0; j < 4; j++) {
				column[0][j] = __byte_perm(w[2 * j], w[2 * j + 1], 0x5410);
				column[1][j] = __byte_perm(w[2 * j], w[2 * j + 1], 0x7632);
			}
		} else {
#pragma unroll
			for (int j = 0; j < 2; j++) {
				const u32 *x = w + 4 * j;
#pragma unroll
				for (int half = 0; half < 2; half++) { // columns 0 and 1, 2 and 3
					const u32 pick = half ? 0x7362 : 0x5140;
					const u32 first = __byte_perm(x[0], x[1], pick), second = __byte_perm(x[2], x[3], pick);
					column[2 * half][j] = __byte_perm(first, second, 0x5410);
					column[2 * half + 1][j] = __byte_perm(first, second, 0x7632);
				}
			}
		}
	}

	// write stores the columns of one word and 8 rows of the tile at (row0, col0) to the
	// transposed matrix. vectors is in_vectors of out; PLAIN implies that, and a full
	// tile.
	template <int SIZE, bool PLAIN = false> __device__ void write(u32 g, void *out, u32 ld, bool vectors, int row0, int col0, int rows, int cols) const {
		const int r = g / 8 % 4 * 8, word = g % 8 + g / 32 * 8;
		const int col = col0 + word * 4 / SIZE, n = min(8, rows - row0 - r);
		if (!PLAIN && (n <= 0 || col >= cols))
			return;
		u32 w[8], column[4 / SIZE][2 * SIZE];
#pragma unroll
		for (int j = 0; j < 8; j++)
			w[j] = words[(r + j) * pitch(SIZE) + word];
		columns<SIZE>(w, column);
		const i64 at = offset(col, ld, (u32)(row0 + r));
		if (PLAIN || (n == 8 && col + 4 / SIZE <= cols && vectors)) {
#pragma unroll
			for (int e = 0; e < 4 / SIZE; e++)
				store_vector((u8 *)out + (at + e * (i64)ld) * SIZE, column[e], 8 * SIZE);
			return;
		}
#pragma unroll
		for (int e = 0; e < 4 / SIZE; e++)
			if (col + e < cols)
				store8(out, at + e * (i64)ld, SIZE, n, column[e]);
	}

	// flush writes the tile, a word per thread at a time.
	template <int SIZE> __device__ void flush(const Cast &c, int row0, int col0, int rows, int cols) const {
		for (u32 g = threadIdx.x; g < COLS * SIZE / 4 * (TILE_ROWS / 8); g += blockDim.x)
			write<SIZE>(g, c.out, (u32)c.ld, in_vectors(c.out, c.ld, SIZE), row0, col0, rows, cols);
	}
	__device__ void flush(const Cast &c, int row0, int col0, int rows, int cols) const {
		switch (size_of(c.format)) {
		case 4: return flush<4>(c, row0, col0, rows, cols);
		case 2: return flush<2>(c, row0, col0, rows, cols);
		default: flush<1>(c, row0, col0, rows, cols);
		}
	}
};

// transpose_buffer is the buffer of the kernels by tiles: a tile of F32, or two of FP8,
// which alternate: threads can fill one half while others still write out the other.
const int SHEET_WORDS = TILE_ROWS * (TILE_COLS + TILE_COLS / 8);

__device__ inline TransposeBuffer<TILE_COLS> &transpose_buffer(bool second = false) {
	__shared__ u32 words[SHEET_WORDS];
	return *(TransposeBuffer<TILE_COLS> *)(words + (second ? TILE_ROWS * TransposeBuffer<TILE_COLS>::pitch(1) : 0));
}
