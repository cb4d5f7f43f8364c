// The template of the ops that compute a result element by element: their cost
// is memory, so each reads its operands once (twice where a number of the whole
// row comes first) and stores the result through all its casts.
//
// A tile has 32 rows and 256 columns. A warp has TILE_EACH rows of it, a lane 8
// consecutive columns of each: 16 bytes of BF16, the widest access there is. A
// block of TILE_THREADS threads walks along its rows, tile by tile:
//
//	Result out(a.out, a.cols, shared);
//	const Operands<2> x({&a.x, &a.y});
//	for (Tile t(a.rows, a.cols, TILE_SPAN); t.more(); t.next()) {
//		float v[TILE_EACH][8];
//		t.each_row(x, [&](int r, const float x[2][8]) { ... });
//		out.store(t, v);
//	}
//	out.end();
//
// Full tiles of plain operands (Operands::plain, Result::vectors, Tile::full) may take a
// path of their own, each_row<true> and store<true>, in which nothing is asked.
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

// Operands are what a kernel reads by tiles, and what is the same of them for all its
// tiles.
template <int N> struct Operands {
	const Tensor *x[N];
	bool vectors; // all have sixteen bits, and rows that can be read in vectors
	bool plain;   // and are BF16 without a scale

	__device__ Operands(const Tensor *const (&list)[N]) : vectors(true), plain(true) {
#pragma unroll
		for (int k = 0; k < N; k++) {
			x[k] = list[k];
			vectors = vectors && x[k]->format != F32 && in_vectors(x[k]->p, x[k]->ld, 2);
			plain = plain && vectors && x[k]->format == BF16 && !x[k]->scale;
		}
	}
	__device__ const Tensor &operator[](int k) const { return *x[k]; }
};

// Tile is where a thread is: the first of its rows, its 8 columns and how many of
// them there are. Every thread of a block goes through the same tiles.
struct Tile {
	int rows, cols, end, row0, col0, row, col;
	bool second; // half of tile_turn is the one to be filled next

	// span is the number of columns of a block, or cols.
	__device__ Tile(i64 rows, i64 cols, i64 span) : rows((int)rows), cols((int)cols), second(false) {
		row0 = blockIdx.x * TILE_ROWS;
		row = row0 + threadIdx.x / 32 * TILE_EACH;
		col0 = blockIdx.y * (int)span;
		end = min(this->cols, col0 + (int)span);
		col = col0 + threadIdx.x % 32 * 8;
	}
	__device__ bool more() const { return col0 < end; }
	__device__ void next() { col0 += TILE_COLS, col += TILE_COLS; }
	// A second time through whole rows goes backwards, because the second-level cache has
	// what was read last: for (t.back(); t.left(); t.back()).
	__device__ void back() { col0 -= TILE_COLS, col -= TILE_COLS; }
	__device__ bool left() const { return col0 >= 0; }

	// width is how many of the 8 columns there are; n is that, and 0 behind the
	// last row.
	__device__ int width() const { return max(0, min(8, cols - col)); }
	__device__ int n(int r) const { return row + r < rows ? width() : 0; }
	// whole says that all of them are there, full that all of the block are.
	__device__ bool whole() const { return row + TILE_EACH <= rows && col + 8 <= cols; }
	__device__ bool full() const { return row0 + TILE_ROWS <= rows && col0 + TILE_COLS <= cols; }

	// each_row calls f(r, v) with the thread's elements of N operands, operand k from
	// k·apart columns further on. All that is fetched of formats of sixteen bits is
	// fetched before any of it is used; of FP32 so much is a row. PLAIN is for operands
	// that are, in a full tile.
	template <bool PLAIN = false, int N, class F> __device__ void each_row(const Operands<N> &x, const F &f, int apart = 0) const {
		if (PLAIN || (x.vectors && whole())) {
			uint4 raw[TILE_EACH][N];
#pragma unroll
			for (int r = 0; r < TILE_EACH; r++)
#pragma unroll
				for (int k = 0; k < N; k++)
					raw[r][k] = __ldg((const uint4 *)((const u16 *)x[k].p + offset(row, x[k].ld, (u32)(col + k * apart)) + r * (i64)(u32)x[k].ld));
#pragma unroll
			for (int r = 0; r < TILE_EACH; r++) {
				float v[N][8];
#pragma unroll
				for (int k = 0; k < N; k++) {
					const Eight e = {{raw[r][k].x, raw[r][k].y, raw[r][k].z, raw[r][k].w}};
					if (PLAIN)
						decode8<BF16>(e, v[k]);
					else
						values8(x[k], e, v[k]);
				}
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
				e[k] = fetch8(x[k], row + r, col + k * apart, n(r));
#pragma unroll
			for (int k = 0; k < N; k++)
				values8(x[k], e[k], v[k]);
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
	// (row0, col0) of the matrix, to its transpose. vectors is in_vectors of that; PLAIN
	// says so, and that the tile is full.
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

	// flush writes the tile: a thread takes a word after the other.
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
	// Way is how a cast is stored, in shared memory, where all threads find it: what of
	// it is the same for all tiles is found out once. A cast whose codes are those of
	// the next one, in another orientation, is stored with it.
	struct Way {
		u64 key, first; // of random bits; first is the index of element (0, 0)
		u8 *out, *turned; // null where there is none
		u32 ld, ld_turned;
		float scale;
		int how;  // F32, BF16, E4M3, E5M2 in vectors, or EACH
		int next; // cast to be stored then
		int random;
	};
	enum { EACH = -1 };

	struct Shared {
		Way way[MAX_CASTS];
		u32 top;
	};

	const Casts &casts;
	int cols;
	bool looks;   // a cast wants the maximum
	bool vectors; // all casts are stored in vectors
	Shared &shared;
	Peak peak; // of what this thread has stored

	__device__ Result(const Casts &casts, i64 cols, Shared &shared) : casts(casts), cols((int)cols), looks(false), vectors(true), shared(shared) {
		const int i = threadIdx.x;
		for (int k = 0; k < casts.n; k++) {
			looks |= casts.cast[k].amax != nullptr;
			vectors = vectors && fits(casts.cast[k]);
		}
		if (i < casts.n) {
			const Cast &c = casts.cast[i];
			const bool turned = c.flags & TRANSPOSE, both = i + 1 < casts.n && together(c, casts.cast[i + 1]);
			const Cast &other = casts.cast[i + both];
			Way &w = shared.way[i];
			w.random = (c.flags & STOCHASTIC) != 0;
			w.key = w.random ? stream_key(casts.control, c.name_key) : 0;
			w.first = c.flags & TOKENS ? control_token(casts.control) * (u64)cols : 0;
			w.scale = c.scale ? *c.scale : 1.0f;
			w.how = fits(c) ? (int)c.format : EACH;
			w.next = i + 1 + both;
			w.out = (u8 *)(!turned ? c.out : both ? other.out : nullptr), w.ld = (u32)(turned ? other.ld : c.ld);
			w.turned = (u8 *)(turned ? c.out : both ? other.out : nullptr), w.ld_turned = (u32)(turned ? c.ld : other.ld);
		}
		if (i == 0)
			shared.top = 0;
		__syncthreads();
	}

	// fits says whether place, or place_turned, knows how to store a cast.
	__device__ bool fits(const Cast &c) const {
		const bool fp8 = c.format == E4M3 || c.format == E5M2, wide = c.format == F32 || c.format == BF16;
		return cols % 8 == 0 && in_vectors(c.out, c.ld, size_of(c.format)) && (fp8 || (wide && !(c.flags & TRANSPOSE)));
	}

	// together says whether two casts have the same codes of FP8, in both orientations.
	__device__ bool together(const Cast &c, const Cast &d) const {
		return fits(c) && fits(d) && size_of(c.format) == 1 && c.format == d.format && c.scale == d.scale &&
		       (c.name_key == d.name_key || !(c.flags & STOCHASTIC)) && (c.flags ^ d.flags) == TRANSPOSE && !by_block(c) && !by_block(d);
	}

	// index is the place of an element's random bits in the stream of a cast.
	__device__ u64 index(const Way &w, i64 row, i64 col) const { return (u64)(u32)row * (u32)cols + (u32)col + w.first; }

	// encode makes the codes of 8 elements from (row, col) on for cast i, where cols and
	// col are multiples of 8.
	__device__ void encode(int i, const float v[8], i64 row, i64 col, u32 words[8]) const {
		const Cast &c = casts.cast[i];
		const Way &w = shared.way[i];
		float x[8];
#pragma unroll
		for (int j = 0; j < 8; j++)
			x[j] = c.scale ? __fmul_rn(v[j], w.scale) : v[j];
		u32 random[4];
		if (w.random)
			random8(w.key, index(w, row, col), random);
		encode8(c.format, x, w.random, random, words);
	}

	// place1 stores one element, as cast i wants it.
	__device__ void place1(int i, float v, i64 row, i64 col) const {
		const Cast &c = casts.cast[i];
		const Way &w = shared.way[i];
		const float x = c.scale ? __fmul_rn(v, w.scale) : v;
		const u32 code = encode1(c.format, x, w.random, w.random ? random_bits(w.key, index(w, row, col)) : 0);
		::store1(c.out, c.flags & TRANSPOSE ? col * c.ld + row : row * c.ld + col, c.format, code);
	}

	// store1 stores one element: for kernels whose threads do not have rows of eight.
	__device__ void store1(float v, i64 row, i64 col) {
		peak.see(magnitude(v));
		for (int i = 0; i < casts.n; i++)
			place1(i, v, row, col);
	}

	// see takes a tile into the maximum.
	template <bool PLAIN> __device__ void see(const Tile &t, const float v[TILE_EACH][8]) {
#pragma unroll
		for (int r = 0; r < TILE_EACH; r++)
			if (PLAIN || t.whole()) {
				peak.see(v[r]);
			} else {
#pragma unroll
				for (int j = 0; j < 8; j++)
					peak.see(j < t.n(r) ? magnitude(v[r][j]) : 0);
			}
	}

	// encode_tile makes a tile's codes of one format for cast i. Without a scale it is
	// 1, which changes no code.
	template <int FORMAT, int WORDS, class Scaled>
	__device__ void encode_tile(const Tile &t, int i, const float v[TILE_EACH][8], const Scaled &scaled, u32 words[TILE_EACH][WORDS]) const {
		const Way &w = shared.way[i];
		const bool random = w.random;
		const float scale = w.scale;
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
			if (random) {
				u32 bits[4];
				random8(w.key, index(w, t.row + r, t.col), bits);
				encode8<FORMAT>(x, bits, words[r]);
			} else {
				encode8<FORMAT>(x, words[r]);
			}
		}
	}

	// place stores the codes of a tile, rows of eight or none.
	template <int SIZE, bool PLAIN, int WORDS> __device__ void place(const Tile &t, u8 *out, u32 ld, const u32 words[TILE_EACH][WORDS]) const {
		u8 *const to = out + offset(t.row, ld, (u32)t.col) * SIZE;
		if (PLAIN || t.whole()) {
#pragma unroll
			for (int r = 0; r < TILE_EACH; r++)
				store_vector(to + r * (i64)ld * SIZE, words[r], 8 * SIZE);
			return;
		}
#pragma unroll
		for (int r = 0; r < TILE_EACH; r++)
			if (t.n(r) > 0)
				store_vector(to + r * (i64)ld * SIZE, words[r], 8 * SIZE);
	}

	// place_turned stores a tile of FP8 transposed. A half of the shared memory may be
	// filled again after the barrier of the next one: then all threads have written
	// it out.
	template <bool PLAIN> __device__ void place_turned(Tile &t, u8 *out, u32 ld, const u32 codes[TILE_EACH][2]) const {
		Turn<TILE_COLS> &turn = tile_turn(t.second);
		t.second = !t.second;
#pragma unroll
		for (int r = 0; r < TILE_EACH; r++)
			turn.put<1>(threadIdx.x / 32 * TILE_EACH + r, threadIdx.x % 32 * 8, codes[r]);
		__syncthreads();
		if (threadIdx.x < TILE_COLS / 4 * (TILE_ROWS / 8)) // the words of 8 rows
			turn.template write<1, PLAIN>(threadIdx.x, out, ld, true, t.row0, t.col0, t.rows, t.cols);
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
	// r, v) may give cast i values of its own. PLAIN is for full tiles, and casts of which
	// all are stored in vectors.
	template <bool PLAIN, class Scaled> __device__ void store(Tile &t, const float v[TILE_EACH][8], const Scaled &scaled) {
		if (looks)
			see<PLAIN>(t, v);
#pragma unroll 1
		for (int i = 0; i < (int)casts.n; i = shared.way[i].next) {
			const Way &w = shared.way[i];
			const int how = w.how;
			if (!PLAIN && how == EACH) {
				place_each(t, i, v, scaled);
			} else if (how == F32) {
				u32 words[TILE_EACH][8];
#pragma unroll
				for (int r = 0; r < TILE_EACH; r++)
#pragma unroll
					for (int j = 0; j < 8; j++)
						words[r][j] = __float_as_uint(casts.cast[i].scale ? __fmul_rn(v[r][j], w.scale) : v[r][j]);
				place<4, PLAIN>(t, w.out, w.ld, words);
			} else if (how == BF16) {
				u32 words[TILE_EACH][4];
				encode_tile<BF16>(t, i, v, scaled, words);
				place<2, PLAIN>(t, w.out, w.ld, words);
			} else {
				u32 codes[TILE_EACH][2];
				if (how == E4M3)
					encode_tile<E4M3>(t, i, v, scaled, codes);
				else
					encode_tile<E5M2>(t, i, v, scaled, codes);
				if (w.out)
					place<1, PLAIN>(t, w.out, w.ld, codes);
				if (w.turned)
					place_turned<PLAIN>(t, w.turned, w.ld_turned, codes);
			}
		}
	}

	struct AsIs {
		__device__ void with(int, const Tile &, int, float *) const {}
	};
	template <bool PLAIN = false> __device__ void store(Tile &t, const float v[TILE_EACH][8]) { store<PLAIN>(t, v, AsIs()); }

	// end folds the block's maximum into the casts' amaxes.
	__device__ void end() {
		const u32 highest = warp_max(peak.top());
		if (threadIdx.x % 32 == 0)
			atomicMax(&shared.top, highest);
		__syncthreads();
		const int i = threadIdx.x;
		if (i < casts.n && casts.cast[i].amax)
			fold_amax(casts.cast[i].amax, shared.top);
	}
};
