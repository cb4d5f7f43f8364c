// The template of the ops that compute a result element by element: their cost
// is memory, so each reads its operands once (twice where a number of the whole
// row comes first) and stores the result through all its casts.
//
// A tile has 32 rows and 256 columns. A warp has a row of it, a lane 8
// consecutive columns: 16 bytes of BF16, the widest access there is. A block of
// TILE_THREADS threads walks along its rows, tile by tile:
//
//	Result out(a.out, a.cols);
//	for (Tile t(a.rows, a.cols, TILE_SPAN); t.more(); t.next()) {
//		float v[8];
//		load8(a.x, t.row, t.col, t.n, v);
//		...
//		out.store(t, v);
//	}
//	out.end();
//
// A transposed copy goes through shared memory. 32 rows of FP8 are then 32
// consecutive bytes of a column: one sector, the unit in which the memory of
// these GPUs is written.
//
// Each block folds its maximum into the amaxes by one atomic maximum.
#pragma once
#include "formats.cuh"

const int TILE_THREADS = 1024; // a warp for each row
const int TILE_ROWS = 32;
const int TILE_COLS = 256;
const int TILE_SPAN = 1024; // columns of a block, where rows need not stay whole

// Tile is where a thread is: its row, its 8 columns and how many of them there
// are, none behind the last row. Every thread of a block goes through the same
// tiles.
struct Tile {
	int rows, cols, end, row0, col0, row, col, n;

	// span is the number of columns of a block, or cols.
	__device__ Tile(i64 rows, i64 cols, i64 span) : rows((int)rows), cols((int)cols) {
		row0 = blockIdx.x * TILE_ROWS;
		row = row0 + threadIdx.x / 32;
		restart((int)span);
	}
	__device__ void restart(int span) {
		col0 = blockIdx.y * span;
		end = min(cols, col0 + span);
		place();
	}
	__device__ void place() {
		col = col0 + threadIdx.x % 32 * 8;
		n = row < rows ? max(0, min(8, cols - col)) : 0;
	}
	__device__ bool more() const { return col0 < end; }
	__device__ void next() {
		col0 += TILE_COLS;
		place();
	}
};

// Turn is the shared memory that a tile of COLS columns is transposed in: its
// rows as words of codes. One word more than a power of two keeps the 8 rows
// that a thread reads, and the 4 × 8 threads of a warp, in different banks.
template <int COLS> struct Turn {
	u32 words[TILE_ROWS * (COLS + 1)];

	__device__ static int pitch(int size) { return COLS * size / 4 + 1; }

	// put stores the codes of 8 columns from col on, in row r of the tile.
	__device__ void put(int r, int col, int size, const u32 *w) {
		u32 *to = words + r * pitch(size) + col * size / 4;
		to[0] = w[0], to[1] = w[1];
		if (size > 1)
			to[2] = w[2], to[3] = w[3];
		if (size > 2)
			to[4] = w[4], to[5] = w[5], to[6] = w[6], to[7] = w[7];
	}

	// flush writes the tile, which begins at (row0, col0) of the matrix, to its
	// transpose. A thread takes the columns of one word and 8 rows.
	__device__ void flush(const Cast &c, int row0, int col0, int rows, int cols) const {
		const int size = size_of(c.format);
		const int groups = COLS * size / 4 * (TILE_ROWS / 8);
		for (int g = threadIdx.x; g < groups; g += blockDim.x) {
			const int r = g / 8 % 4 * 8, word = g % 8 + g / 32 * 8;
			const int col = col0 + word * 4 / size, n = min(8, rows - row0 - r);
			if (n <= 0 || col >= cols)
				continue;
			u32 w[8];
#pragma unroll
			for (int j = 0; j < 8; j++)
				w[j] = words[(r + j) * pitch(size) + word];
			const i64 at = col * c.ld + row0 + r;
			if (size == 4) {
				store8(c.out, at, 4, n, w);
			} else if (size == 2) {
#pragma unroll
				for (int e = 0; e < 2; e++) {
					if (col + e >= cols)
						break;
					u32 column[8];
#pragma unroll
					for (int j = 0; j < 4; j++)
						column[j] = __byte_perm(w[2 * j], w[2 * j + 1], e ? 0x7632 : 0x5410);
					store8(c.out, at + e * c.ld, 2, n, column);
				}
			} else {
#pragma unroll
				for (int e = 0; e < 4; e++) {
					if (col + e >= cols)
						break;
					const u32 pick = e | (e + 4) << 4;
					u32 column[8];
#pragma unroll
					for (int j = 0; j < 2; j++)
						column[j] = __byte_perm(__byte_perm(w[4 * j], w[4 * j + 1], pick), __byte_perm(w[4 * j + 2], w[4 * j + 3], pick), 0x5410);
					store8(c.out, at + e * c.ld, 1, n, column);
				}
			}
		}
	}
};

// tile_turn is the one of the kernels by tiles.
__device__ inline Turn<TILE_COLS> &tile_turn() {
	__shared__ Turn<TILE_COLS> turn;
	return turn;
}

// Result stores a result of any number of rows and of cols columns through its
// casts (backend.Cast). The block's threads make it and call its methods
// together.
struct Result {
	// What all threads share of a result, in shared memory.
	struct Shared {
		u64 key[MAX_CASTS];
		float scale[MAX_CASTS];
		u64 first; // index of element (0, 0) if rows are tokens
		u32 top;
	};

	const Casts &casts;
	i64 cols;
	Shared &shared;
	u32 top; // the largest magnitude that this thread has stored

	__device__ Result(const Casts &casts, i64 cols, Shared &shared) : casts(casts), cols(cols), shared(shared), top(0) {
		const int i = threadIdx.x;
		if (i < casts.n) {
			const Cast &c = casts.cast[i];
			shared.scale[i] = c.scale ? *c.scale : 1.0f;
			shared.key[i] = c.flags & STOCHASTIC ? stream_key(casts.control, c.name_key) : 0;
		}
		if (i == 0) {
			shared.first = control_token(casts.control) * (u64)cols;
			shared.top = 0;
		}
		__syncthreads();
	}

	// encode makes the codes of 8 elements from (row, col) on for cast i.
	__device__ void encode(int i, const float v[8], i64 row, i64 col, u32 words[8]) const {
		const Cast &c = casts.cast[i];
		float x[8];
#pragma unroll
		for (int j = 0; j < 8; j++)
			x[j] = v[j];
		if (c.scale) {
			const float s = shared.scale[i];
#pragma unroll
			for (int j = 0; j < 8; j++)
				x[j] = __fmul_rn(v[j], s);
		}
		const u64 index = (u64)row * (u64)cols + (u64)col + (c.flags & TOKENS ? shared.first : 0);
		encode8(c.format, x, c.flags & STOCHASTIC, shared.key[i], index, words);
	}

	// store1 stores one element, as every cast wants it: for kernels whose threads
	// do not have rows of eight.
	__device__ void store1(float v, i64 row, i64 col) {
		top = max(top, magnitude(v));
		for (int i = 0; i < casts.n; i++) {
			const Cast &c = casts.cast[i];
			const bool stochastic = c.flags & STOCHASTIC;
			const u64 index = (u64)row * (u64)cols + (u64)col + (c.flags & TOKENS ? shared.first : 0);
			const float x = c.scale ? __fmul_rn(v, shared.scale[i]) : v;
			const u32 code = encode1(c.format, x, stochastic, stochastic ? random_bits(shared.key[i], index) : 0);
			::store1(c.out, c.flags & TRANSPOSE ? col * c.ld + row : row * c.ld + col, c.format, code);
		}
	}

	// store stores a tile, 8 elements of each thread. scaled.with(i, v) may give
	// cast i values of its own.
	template <class Scaled> __device__ void store(const Tile &t, const float v[8], const Scaled &scaled) {
#pragma unroll
		for (int j = 0; j < 8; j++)
			if (j < t.n)
				top = max(top, magnitude(v[j]));
#pragma unroll 1
		for (int i = 0; i < casts.n; i++) {
			const Cast &c = casts.cast[i];
			const int size = size_of(c.format);
			float x[8];
#pragma unroll
			for (int j = 0; j < 8; j++)
				x[j] = v[j];
			scaled.with(i, x);
			u32 words[8];
			if (t.n > 0)
				encode(i, x, t.row, t.col, words);
			if (!(c.flags & TRANSPOSE)) {
				if (t.n > 0)
					store8(c.out, t.row * c.ld + t.col, size, t.n, words);
				continue;
			}
			Turn<TILE_COLS> &turn = tile_turn();
			__syncthreads(); // the last tile may still be read
			if (t.n > 0)
				turn.put(threadIdx.x / 32, threadIdx.x % 32 * 8, size, words);
			__syncthreads();
			turn.flush(c, t.row0, t.col0, t.rows, t.cols);
		}
	}

	struct AsIs {
		__device__ void with(int, float *) const {}
	};
	__device__ void store(const Tile &t, const float v[8]) { store(t, v, AsIs()); }

	// end folds the block's maximum into the casts' amaxes.
	__device__ void end() {
		const u32 most = warp_max(top);
		if (threadIdx.x % 32 == 0)
			atomicMax(&shared.top, most);
		__syncthreads();
		const int i = threadIdx.x;
		if (i < casts.n && casts.cast[i].amax)
			fold_amax(casts.cast[i].amax, shared.top);
	}
};

// ---- maxima of columns ----

const int STRIP_ROWS = 256; // rows of a block, 8 for each warp

// Columns are the largest magnitudes of the tile's columns in the rows that a
// thread has seen; write combines them over the block's warps and stores those of
// the strip.
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
		__shared__ u32 most[TILE_COLS];
		__syncthreads();
		if (threadIdx.x < TILE_COLS)
			most[threadIdx.x] = 0;
		__syncthreads();
#pragma unroll
		for (int j = 0; j < 8; j++)
			atomicMax(&most[threadIdx.x % 32 * 8 + j], top[j]);
		__syncthreads();
		const i64 col = (i64)blockIdx.y * TILE_COLS + threadIdx.x;
		if (threadIdx.x < TILE_COLS && col < cols)
			strip[blockIdx.x * cols + col] = __uint_as_float(most[threadIdx.x]);
	}
};

// each_strip_row calls f(row, col, n) for the rows and columns of a thread.
template <class F> __device__ inline void each_strip_row(i64 rows, i64 cols, const F &f) {
	const i64 first = (i64)blockIdx.x * STRIP_ROWS, last = min(rows, first + STRIP_ROWS);
	const i64 col = (i64)blockIdx.y * TILE_COLS + threadIdx.x % 32 * 8;
	const int n = (int)max(0ll, min(8ll, cols - col));
	for (i64 row = first + threadIdx.x / 32; row < last; row += TILE_THREADS / 32)
		f(row, col, n);
}

// strips_max is the largest of a column's maxima.
__device__ inline u32 strips_max(const float *strips, i64 rows, i64 cols, i64 col) {
	u32 top = 0;
	for (i64 i = 0; i * STRIP_ROWS < rows; i++)
		top = max(top, magnitude(strips[i * cols + col]));
	return top;
}
