// The template of the ops that compute a result element by element: their cost
// is memory, so each reads its operands once (twice where a number of the whole
// row comes first) and stores the result through all its casts.
//
// A tile has 32 rows and 256 columns. A warp has TILE_EACH rows of it, a lane 8
// consecutive columns of each: 16 bytes of BF16, the widest access there is. A
// block of TILE_THREADS threads walks along its rows, tile by tile:
//
//	Result out(a.out, a.cols, shared);
//	for (Tile t(a.rows, a.cols, TILE_SPAN); t.more(); t.next()) {
//		float v[TILE_EACH][8];
//		t.each_row<2>({&a.x, &a.y}, [&](int r, float x[2][8]) { ... });
//		out.store(t, v);
//	}
//	out.end();
//
// While a block waits for memory or at a barrier, another one works: two share a
// multiprocessor, which leaves a thread 64 registers.
//
// A transposed copy goes through shared memory. 32 rows of FP8 are then 32
// consecutive bytes of a column: one sector, the unit in which the memory of
// these GPUs is written.
//
// Each block folds its maximum into the amaxes by one atomic maximum.
#pragma once
#include "formats.cuh"

const int TILE_THREADS = 512;
const int TILE_ROWS = 32;
const int TILE_EACH = TILE_ROWS / (TILE_THREADS / 32); // rows of a thread
const int TILE_COLS = 256;
const int TILE_SPAN = 2048; // columns of a block, where rows need not stay whole

// Tile is where a thread is: the first of its rows, its 8 columns and how many of
// them there are. Every thread of a block goes through the same tiles.
struct Tile {
	int rows, cols, end, row0, col0, row, col;
	bool second; // half of tile_turn is the one to be filled next

	// span is the number of columns of a block, or cols.
	__device__ Tile(i64 rows, i64 cols, i64 span) : rows((int)rows), cols((int)cols), second(false) {
		row0 = blockIdx.x * TILE_ROWS;
		row = row0 + threadIdx.x / 32 * TILE_EACH;
		restart((int)span);
	}
	__device__ void restart(int span) {
		col0 = blockIdx.y * span;
		end = min(cols, col0 + span);
		col = col0 + threadIdx.x % 32 * 8;
	}
	__device__ bool more() const { return col0 < end; }
	__device__ void next() { col0 += TILE_COLS, col += TILE_COLS; }

	// width is how many of the 8 columns there are; n is that, and 0 behind the
	// last row.
	__device__ int width() const { return max(0, min(8, cols - col)); }
	__device__ int n(int r) const { return row + r < rows ? width() : 0; }
	// whole says that all of them are there.
	__device__ bool whole() const { return row + TILE_EACH <= rows && col + 8 <= cols; }

	// each_row calls f(r, v) with the thread's elements of N operands. All that is
	// fetched of formats of sixteen bits is fetched before any of it is used; of FP32
	// so much is a row.
	template <int N, class F> __device__ void each_row(const Tensor *const (&x)[N], const F &f) const {
		bool quick = whole();
#pragma unroll
		for (int k = 0; k < N; k++)
			quick = quick && x[k]->format != F32 && in_vectors(x[k]->p, x[k]->ld, 2);
		if (quick) {
			uint4 raw[TILE_EACH][N];
#pragma unroll
			for (int r = 0; r < TILE_EACH; r++)
#pragma unroll
				for (int k = 0; k < N; k++)
					raw[r][k] = __ldg((const uint4 *)((const u16 *)x[k]->p + offset(row, x[k]->ld, (u32)col) + r * (i64)(u32)x[k]->ld));
#pragma unroll
			for (int r = 0; r < TILE_EACH; r++) {
				float v[N][8];
#pragma unroll
				for (int k = 0; k < N; k++)
					values8(*x[k], Eight{{raw[r][k].x, raw[r][k].y, raw[r][k].z, raw[r][k].w}}, v[k]);
				f(r, v);
			}
			return;
		}
#pragma unroll
		for (int r = 0; r < TILE_EACH; r++) {
			Eight e[N];
			float v[N][8];
#pragma unroll
			for (int k = 0; k < N; k++)
				e[k] = fetch8(*x[k], row + r, col, n(r));
#pragma unroll
			for (int k = 0; k < N; k++)
				values8(*x[k], e[k], v[k]);
			f(r, v);
		}
	}
	// fetch_row reads 8 elements of a vector that has one for each column.
	__device__ Eight fetch_row(const Tensor &x) const { return fetch8(x, 0, col, width()); }
};

// scale_tile multiplies a tile by a factor of each row, and one of each column,
// where there are any, each product rounded.
__device__ inline void scale_tile(const Tile &t, const Tensor &rows, const Tensor &cols, float v[TILE_EACH][8]) {
	if (rows.p) {
#pragma unroll
		for (int r = 0; r < TILE_EACH; r++) {
			const float s = t.n(r) > 0 ? rows.f32()[t.row + r] : 1.0f;
#pragma unroll
			for (int i = 0; i < 8; i++)
				v[r][i] = __fmul_rn(v[r][i], s);
		}
	}
	if (cols.p) {
		float s[8];
		values8(cols, t.fetch_row(cols), s);
#pragma unroll
		for (int r = 0; r < TILE_EACH; r++)
#pragma unroll
			for (int i = 0; i < 8; i++)
				v[r][i] = __fmul_rn(v[r][i], s[i]);
	}
}

// Turn is the shared memory that a tile of COLS columns is transposed in: its
// rows as words of codes. One word more than a power of two keeps the 8 rows
// that a thread reads, and the 4 × 8 threads of a warp, in different banks.
template <int COLS> struct Turn {
	u32 words[TILE_ROWS * (COLS + 1)];

	__device__ static constexpr int pitch(int size) { return COLS * size / 4 + 1; }

	// put stores the codes of 8 columns from col on, in row r of the tile.
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

	// columns turns words of 8 rows into what each of their columns has: 8 codes.
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

	// write writes the columns of one word and 8 rows of a tile, which begins at
	// (row0, col0) of the matrix, to its transpose.
	template <int SIZE> __device__ void write(u32 g, const Cast &c, int row0, int col0, int rows, int cols) const {
		const int r = g / 8 % 4 * 8, word = g % 8 + g / 32 * 8;
		const int col = col0 + word * 4 / SIZE, n = min(8, rows - row0 - r);
		if (n <= 0 || col >= cols)
			return;
		u32 w[8], column[4 / SIZE][2 * SIZE];
#pragma unroll
		for (int j = 0; j < 8; j++)
			w[j] = words[(r + j) * pitch(SIZE) + word];
		columns<SIZE>(w, column);
		const i64 at = offset(col, c.ld, (u32)(row0 + r));
		if (n == 8 && col + 4 / SIZE <= cols && in_vectors(c.out, c.ld, SIZE)) {
#pragma unroll
			for (int e = 0; e < 4 / SIZE; e++)
				store_vector((u8 *)c.out + (at + e * (i64)(u32)c.ld) * SIZE, column[e], 8 * SIZE);
			return;
		}
#pragma unroll
		for (int e = 0; e < 4 / SIZE; e++)
			if (col + e < cols)
				store8(c.out, at + e * (i64)(u32)c.ld, SIZE, n, column[e]);
	}

	// flush writes the tile: a thread takes a word after the other.
	template <int SIZE> __device__ void flush(const Cast &c, int row0, int col0, int rows, int cols) const {
		for (u32 g = threadIdx.x; g < COLS * SIZE / 4 * (TILE_ROWS / 8); g += blockDim.x)
			write<SIZE>(g, c, row0, col0, rows, cols);
	}
	__device__ void flush(const Cast &c, int row0, int col0, int rows, int cols) const {
		const int size = size_of(c.format);
		for (u32 g = threadIdx.x; g < COLS * size / 4 * (TILE_ROWS / 8); g += blockDim.x)
			if (size == 4)
				write<4>(g, c, row0, col0, rows, cols);
			else if (size == 2)
				write<2>(g, c, row0, col0, rows, cols);
			else
				write<1>(g, c, row0, col0, rows, cols);
	}
};

// tile_turn is the one of the kernels by tiles: room for a tile of F32, or two of
// FP8, in turns: while some threads still write one out, others fill the other.
const int SHEET_WORDS = TILE_ROWS * (TILE_COLS + TILE_COLS / 8);

__device__ inline Turn<TILE_COLS> &tile_turn(bool second = false) {
	__shared__ u32 words[SHEET_WORDS];
	return *(Turn<TILE_COLS> *)(words + (second ? TILE_ROWS * Turn<TILE_COLS>::pitch(1) : 0));
}

// Result stores a result of any number of rows and of cols columns through its
// casts (backend.Cast). The block's threads make it and call its methods
// together.
struct Result {
	// What all threads share of a result, in shared memory.
	struct Shared {
		u64 key[MAX_CASTS];
		float scale[MAX_CASTS];
		int vectors[MAX_CASTS];
		int again[MAX_CASTS];   // the codes are those of the cast before, in another orientation
		u64 first;               // index of element (0, 0) if rows are tokens
		u32 top;
	};

	const Casts &casts;
	int cols;
	Shared &shared;
	// The largest of what this thread has stored, as unsigned bits and as signed
	// ones: of all numbers or the negative ones, and of the positive ones.
	u32 top;
	int most;

	__device__ Result(const Casts &casts, i64 cols, Shared &shared) : casts(casts), cols((int)cols), shared(shared), top(0), most(0) {
		const int i = threadIdx.x;
		if (i < casts.n) {
			const Cast &c = casts.cast[i], &before = casts.cast[max(0, i - 1)];
			shared.scale[i] = c.scale ? *c.scale : 1.0f;
			shared.key[i] = c.flags & STOCHASTIC ? stream_key(casts.control, c.name_key) : 0;
			shared.vectors[i] = vectors(c);
			shared.again[i] = i > 0 && vectors(before) && c.format == before.format && c.scale == before.scale &&
			                  (c.name_key == before.name_key || !(c.flags & STOCHASTIC)) &&
			                  ((c.flags ^ before.flags) & ~(i64)TRANSPOSE) == 0 && !by_block(c);
		}
		if (i == 0) {
			shared.first = control_token(casts.control) * (u64)cols;
			shared.top = 0;
		}
		__syncthreads();
	}

	// vectors says whether place, or place_turned, knows how to store a cast.
	__device__ bool vectors(const Cast &c) const {
		const bool fp8 = c.format == E4M3 || c.format == E5M2, wide = c.format == F32 || c.format == BF16;
		return cols % 8 == 0 && in_vectors(c.out, c.ld, size_of(c.format)) && (fp8 || (wide && !(c.flags & TRANSPOSE)));
	}

	// index is the place of an element's random bits in the stream of a cast.
	__device__ u64 index(const Cast &c, i64 row, i64 col) const {
		return (u64)(u32)row * (u32)cols + (u32)col + (c.flags & TOKENS ? shared.first : 0);
	}

	// encode makes the codes of 8 elements from (row, col) on for cast i, where cols and
	// col are multiples of 8.
	__device__ void encode(int i, const float v[8], i64 row, i64 col, u32 words[8]) const {
		const Cast &c = casts.cast[i];
		float x[8];
#pragma unroll
		for (int j = 0; j < 8; j++)
			x[j] = c.scale ? __fmul_rn(v[j], shared.scale[i]) : v[j];
		u32 random[4];
		if (c.flags & STOCHASTIC)
			random8(shared.key[i], index(c, row, col), random);
		encode8(c.format, x, c.flags & STOCHASTIC, random, words);
	}

	// place1 stores one element, as cast i wants it.
	__device__ void place1(int i, float v, i64 row, i64 col) const {
		const Cast &c = casts.cast[i];
		const bool stochastic = c.flags & STOCHASTIC;
		const float x = c.scale ? __fmul_rn(v, shared.scale[i]) : v;
		const u32 code = encode1(c.format, x, stochastic, stochastic ? random_bits(shared.key[i], index(c, row, col)) : 0);
		::store1(c.out, c.flags & TRANSPOSE ? col * c.ld + row : row * c.ld + col, c.format, code);
	}

	// store1 stores one element: for kernels whose threads do not have rows of eight.
	__device__ void store1(float v, i64 row, i64 col) {
		top = max(top, magnitude(v));
		for (int i = 0; i < casts.n; i++)
			place1(i, v, row, col);
	}

	// see takes a tile into the maximum.
	__device__ void see(const Tile &t, const float v[TILE_EACH][8]) {
		if (!t.whole()) {
#pragma unroll
			for (int r = 0; r < TILE_EACH; r++)
#pragma unroll
				for (int j = 0; j < 8; j++)
					top = max(top, j < t.n(r) ? magnitude(v[r][j]) : 0);
			return;
		}
#pragma unroll
		for (int r = 0; r < TILE_EACH; r++)
#pragma unroll
			for (int j = 0; j < 8; j += 2) {
				top = max(max(top, __float_as_uint(v[r][j])), __float_as_uint(v[r][j + 1]));
				most = max(max(most, (int)__float_as_uint(v[r][j])), (int)__float_as_uint(v[r][j + 1]));
			}
	}

	// encode_tile makes a tile's codes of one format. Without a scale it is 1, which
	// changes no code.
	template <int FORMAT, int WORDS, class Scaled>
	__device__ void encode_tile(const Tile &t, int i, const float v[TILE_EACH][8], const Scaled &scaled, u32 words[TILE_EACH][WORDS]) const {
		const Cast &c = casts.cast[i];
		const bool stochastic = c.flags & STOCHASTIC;
		const float scale = shared.scale[i];
#pragma unroll
		for (int r = 0; r < TILE_EACH; r++) {
			float x[8];
#pragma unroll
			for (int j = 0; j < 8; j++)
				x[j] = v[r][j];
			scaled.with(i, t, r, x);
#pragma unroll
			for (int j = 0; j < 8; j++)
				x[j] = __fmul_rn(x[j], scale);
			if (stochastic) {
				u32 random[4];
				random8(shared.key[i], index(c, t.row + r, t.col), random);
				encode8<FORMAT>(x, random, words[r]);
			} else {
				encode8<FORMAT>(x, words[r]);
			}
		}
	}

	// place stores the codes of a tile, rows of eight or none.
	template <int SIZE, int WORDS> __device__ void place(const Tile &t, const Cast &c, const u32 words[TILE_EACH][WORDS]) const {
		u8 *const to = (u8 *)c.out + offset(t.row, c.ld, (u32)t.col) * SIZE;
#pragma unroll
		for (int r = 0; r < TILE_EACH; r++)
			if (t.n(r) > 0)
				store_vector(to + r * (i64)(u32)c.ld * SIZE, words[r], 8 * SIZE);
	}

	// place_turned stores a tile of FP8 transposed. A half of the shared memory may be
	// filled again after the barrier of the next one: then all threads have written
	// it out.
	__device__ void place_turned(Tile &t, const Cast &c, const u32 codes[TILE_EACH][2]) const {
		Turn<TILE_COLS> &turn = tile_turn(t.second);
		t.second = !t.second;
#pragma unroll
		for (int r = 0; r < TILE_EACH; r++)
			turn.put<1>(threadIdx.x / 32 * TILE_EACH + r, threadIdx.x % 32 * 8, codes[r]);
		__syncthreads();
		turn.flush<1>(c, t.row0, t.col0, t.rows, t.cols);
	}

	// place_each stores a tile element by element: for what vectors do not fit, wide
	// formats transposed, and formats that no training on this device has.
	template <class Scaled> __device__ void place_each(const Tile &t, int i, const float v[TILE_EACH][8], const Scaled &scaled) const {
		float *const sheet = (float *)tile_turn().words;
		__syncthreads(); // the last tile may still be read
#pragma unroll
		for (int r = 0; r < TILE_EACH; r++) {
			float x[8];
#pragma unroll
			for (int j = 0; j < 8; j++)
				x[j] = v[r][j];
			scaled.with(i, t, r, x);
#pragma unroll
			for (int j = 0; j < 8; j++)
				sheet[(threadIdx.x / 32 * TILE_EACH + r) * TILE_COLS + threadIdx.x % 32 * 8 + j] = x[j];
		}
		__syncthreads();
		const bool turned = casts.cast[i].flags & TRANSPOSE;
#pragma unroll 1
		for (int e = threadIdx.x; e < TILE_ROWS * TILE_COLS; e += TILE_THREADS) {
			const int r = turned ? e % TILE_ROWS : e / TILE_COLS, c = turned ? e / TILE_ROWS : e % TILE_COLS;
			if (t.row0 + r < t.rows && t.col0 + c < t.cols)
				place1(i, sheet[r * TILE_COLS + c], t.row0 + r, t.col0 + c);
		}
		__syncthreads();
	}

	// store stores a tile, 8 elements of each of a thread's rows. scaled.with(i, t,
	// r, v) may give cast i values of its own.
	template <class Scaled> __device__ void store(Tile &t, const float v[TILE_EACH][8], const Scaled &scaled) {
		see(t, v);
		u32 codes[TILE_EACH][2]; // of FP8, which the next cast may want again
#pragma unroll 1
		for (int i = 0; i < (int)casts.n; i++) {
			const Cast &c = casts.cast[i];
			const int format = (int)c.format;
			if (!shared.vectors[i]) {
				place_each(t, i, v, scaled);
			} else if (format == F32) {
				u32 words[TILE_EACH][8];
#pragma unroll
				for (int r = 0; r < TILE_EACH; r++)
#pragma unroll
					for (int j = 0; j < 8; j++)
						words[r][j] = __float_as_uint(c.scale ? __fmul_rn(v[r][j], shared.scale[i]) : v[r][j]);
				place<4>(t, c, words);
			} else if (format == BF16) {
				u32 words[TILE_EACH][4];
				encode_tile<BF16>(t, i, v, scaled, words);
				place<2>(t, c, words);
			} else {
				if (!shared.again[i] && format == E4M3)
					encode_tile<E4M3>(t, i, v, scaled, codes);
				else if (!shared.again[i])
					encode_tile<E5M2>(t, i, v, scaled, codes);
				if (c.flags & TRANSPOSE)
					place_turned(t, c, codes);
				else
					place<1>(t, c, codes);
			}
		}
	}

	struct AsIs {
		__device__ void with(int, const Tile &, int, float *) const {}
	};
	__device__ void store(Tile &t, const float v[TILE_EACH][8]) { store(t, v, AsIs()); }

	// end folds the block's maximum into the casts' amaxes.
	__device__ void end() {
		const u32 highest = warp_max(max(top & 0x7fffffffu, (u32)most));
		if (threadIdx.x % 32 == 0)
			atomicMax(&shared.top, highest);
		__syncthreads();
		const int i = threadIdx.x;
		if (i < casts.n && casts.cast[i].amax)
			fold_amax(casts.cast[i].amax, shared.top);
	}
};
