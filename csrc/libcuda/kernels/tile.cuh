// Template of elementwise ops. They are bound by memory, so each reads its operands once
// (twice if a reduction of the whole row comes first) and stores the result through all
// its casts.
//
// A tile has 32 rows and 256 columns. A warp has TILE_EACH rows of it, a lane 8
// consecutive columns of each row: 16 bytes of BF16, the widest access. A block of
// TILE_THREADS threads iterates along its rows, tile by tile:
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
// path without checks, each_row<true> and store<true>.
//
// Two blocks share a multiprocessor, so that one works while the other waits for memory
// or at a barrier. That leaves 64 registers per thread.
//
// A transposed copy goes through shared memory. 32 rows of FP8 become 32 consecutive
// bytes of a column: one sector, the unit of memory writes on these GPUs.
//
// Each block folds its maximum into the amaxes by one atomic maximum.
#pragma once
#include "transpose.cuh"

const int TILE_SPAN = 2048; // columns of a block that does not need whole rows

// Operands are the operands of a kernel by tiles, with properties that hold for all
// tiles.
template <int N> struct Operands {
	const Tensor *x[N];
	bool vectors; // all have 16 bits and aligned rows
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

// Tile is a thread's position: its first row, its 8 columns. All threads of a block
// iterate over the same tiles.
struct Tile {
	int rows, cols, end, row0, col0, row, col;
	bool second; // the half of transpose_buffer to fill next

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
	// The second pass over whole rows goes backwards, because the L2 cache holds what was
	// read last: for (t.back(); t.left(); t.back()).
	__device__ void back() { col0 -= TILE_COLS, col -= TILE_COLS; }
	__device__ bool left() const { return col0 >= 0; }

	// width is the number of valid columns of the 8; n is that, and 0 after the last row.
	__device__ int width() const { return max(0, min(8, cols - col)); }
	__device__ int n(int r) const { return row + r < rows ? width() : 0; }
	// whole: all of the thread's elements are valid; full: all of the block's.
	__device__ bool whole() const { return row + TILE_EACH <= rows && col + 8 <= cols; }
	__device__ bool full() const { return row0 + TILE_ROWS <= rows && col0 + TILE_COLS <= cols; }

	// each_row calls f(r, v) with the thread's elements of N operands, operand k shifted
	// by k·distance columns. It fetches all 16-bit operands before it decodes any; F32
	// row by row. PLAIN requires plain operands and a full tile.
	template <bool PLAIN = false, int N, class F> __device__ void each_row(const Operands<N> &x, const F &f, int distance = 0) const {
		if (PLAIN || (x.vectors && whole())) {
			uint4 raw[TILE_EACH][N];
#pragma unroll
			for (int r = 0; r < TILE_EACH; r++)
#pragma unroll
				for (int k = 0; k < N; k++)
					raw[r][k] = __ldg((const uint4 *)((const u16 *)x[k].p + offset(row, x[k].ld, (u32)(col + k * distance)) + r * (i64)(u32)x[k].ld));
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
				e[k] = fetch8(x[k], row + r, col + k * distance, n(r));
#pragma unroll
			for (int k = 0; k < N; k++)
				values8(x[k], e[k], v[k]);
			f(r, v);
		}
	}
	// fetch_row loads 8 elements of a vector with one element per column.
	__device__ Eight fetch_row(const Tensor &x) const { return fetch8(x, 0, col, width()); }
};

// scale_tile multiplies a tile by a scale per row and one per column, if present; each
// multiplication is rounded.
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

// Result stores a result of any number of rows, and cols columns, through its casts
// (backend.Cast). All threads of the block construct it and call its methods together.
struct Result {
	// CastPlan is how to store a cast, in shared memory: everything that is the same for
	// all tiles. A cast with the same codes as the next one, in the other orientation, is
	// stored with it.
	struct CastPlan {
		u64 key, first; // random stream; first is the index of element (0, 0)
		u8 *out, *transposed; // null: none
		u32 ld, ld_transposed;
		float scale;
		int mode;  // F32, BF16, E4M3, E5M2 as vectors, or EACH
		int next; // next cast to store
		int random;
	};
	enum { EACH = -1 };

	struct Shared {
		CastPlan plan[MAX_CASTS];
		u32 top;
	};

	const Casts &casts;
	int cols;
	bool wants_amax;   // a cast has an amax
	bool vectors; // all casts are stored as vectors
	Shared &shared;
	Peak peak; // of the values that this thread has stored

	__device__ Result(const Casts &casts, i64 cols, Shared &shared) : casts(casts), cols((int)cols), wants_amax(false), vectors(true), shared(shared) {
		const int i = threadIdx.x;
		for (int k = 0; k < casts.n; k++) {
			wants_amax |= casts.cast[k].amax != nullptr;
			vectors = vectors && fits(casts.cast[k]);
		}
		if (i < casts.n) {
			const Cast &c = casts.cast[i];
			const bool transposed = c.flags & TRANSPOSE, both = i + 1 < casts.n && same_codes(c, casts.cast[i + 1]);
			const Cast &other = casts.cast[i + both];
			CastPlan &w = shared.plan[i];
			w.random = (c.flags & STOCHASTIC) != 0;
			w.key = w.random ? stream_key(casts.control, c.name_key) : 0;
			w.first = c.flags & TOKENS ? control_token(casts.control) * (u64)cols : 0;
			w.scale = c.scale && !by_block(c) ? *c.scale : 1.0f;
			w.mode = fits(c) ? (int)c.format : EACH;
			w.next = i + 1 + both;
			w.out = (u8 *)(!transposed ? c.out : both ? other.out : nullptr), w.ld = (u32)(transposed ? other.ld : c.ld);
			w.transposed = (u8 *)(transposed ? c.out : both ? other.out : nullptr), w.ld_transposed = (u32)(transposed ? c.ld : other.ld);
		}
		if (i == 0)
			shared.top = 0;
		__syncthreads();
	}

	// fits reports whether place or place_transposed can store a cast.
	__device__ bool fits(const Cast &c) const {
		const bool fp8 = c.format == E4M3 || c.format == E5M2, wide = c.format == F32 || c.format == BF16;
		return !c.precision && cols % 8 == 0 && in_vectors(c.out, c.ld, size_of(c.format)) && (fp8 || (wide && !(c.flags & TRANSPOSE)));
	}

	// same_codes reports whether two casts have the same FP8 codes in both orientations.
	__device__ bool same_codes(const Cast &c, const Cast &d) const {
		return fits(c) && fits(d) && size_of(c.format) == 1 && c.format == d.format && c.scale == d.scale &&
		       (c.name_key == d.name_key || !(c.flags & STOCHASTIC)) && (c.flags ^ d.flags) == TRANSPOSE && !by_block(c) && !by_block(d);
	}

	// index returns the index of an element's random bits in its stream.
	__device__ u64 index(const CastPlan &w, i64 row, i64 col) const { return (u64)(u32)row * (u32)cols + (u32)col + w.first; }

	// encode returns the codes of 8 elements from (row, col) for cast i; cols and col are
	// multiples of 8.
	__device__ void encode(int i, const float v[8], i64 row, i64 col, u32 words[8]) const {
		const Cast &c = casts.cast[i];
		const CastPlan &w = shared.plan[i];
		float x[8];
#pragma unroll
		for (int j = 0; j < 8; j++)
			x[j] = reduced(c.scale ? __fmul_rn(v[j], w.scale) : v[j], c.precision);
		u32 random[4];
		if (w.random)
			random8(w.key, index(w, row, col), random);
		encode8(c.format, x, w.random, random, words);
	}

	// code1 returns the code of one element for cast i.
	__device__ u32 code1(int i, float v, i64 row, i64 col) const {
		const Cast &c = casts.cast[i];
		const CastPlan &w = shared.plan[i];
		const float x = reduced(c.scale ? __fmul_rn(v, w.scale) : v, c.precision);
		return encode1(c.format, x, w.random, w.random ? random_bits(w.key, index(w, row, col)) : 0);
	}

	// place1 stores one element through cast i, in any format but E2M1.
	__device__ void place1(int i, float v, i64 row, i64 col) const {
		const Cast &c = casts.cast[i];
		::store1(c.out, c.flags & TRANSPOSE ? col * c.ld + row : row * c.ld + col, c.format, code1(i, v, row, col));
	}

	// place_pairs stores a sheet of E2M1, two elements of a row of Out in a byte. Rows of Out
	// have an even length, so no pair is cut.
	__device__ void place_pairs(const Tile &t, int i, const float *sheet) const {
		const Cast &k = casts.cast[i];
		const bool transposed = k.flags & TRANSPOSE;
#pragma unroll 1
		for (int e = threadIdx.x; e < TILE_ROWS * TILE_COLS / 2; e += TILE_THREADS) {
			const int r = transposed ? e % (TILE_ROWS / 2) * 2 : e / (TILE_COLS / 2), c = transposed ? e / (TILE_ROWS / 2) : e % (TILE_COLS / 2) * 2;
			const int down = transposed ? 1 : 0, beside = 1 - down;
			const i64 row = t.row0 + r, col = t.col0 + c;
			if (row >= t.rows || col >= t.cols)
				continue;
			const u32 low = code1(i, sheet[r * TILE_COLS + c], row, col);
			const u32 high = code1(i, sheet[(r + down) * TILE_COLS + c + beside], row + down, col + beside);
			((u8 *)k.out)[(transposed ? col * k.ld + row : row * k.ld + col) / 2] = (u8)(low | high << 4);
		}
	}

	// store1 stores one element through all casts, for kernels whose threads do not have
	// eight columns.
	__device__ void store1(float v, i64 row, i64 col) {
		peak.fold(magnitude(v));
		for (int i = 0; i < casts.n; i++)
			place1(i, v, row, col);
	}

	// fold_tile folds a tile into the maximum.
	template <bool PLAIN> __device__ void fold_tile(const Tile &t, const float v[TILE_EACH][8]) {
#pragma unroll
		for (int r = 0; r < TILE_EACH; r++)
			if (PLAIN || t.whole()) {
				peak.fold(v[r]);
			} else {
#pragma unroll
				for (int j = 0; j < 8; j++)
					peak.fold(j < t.n(r) ? magnitude(v[r][j]) : 0);
			}
	}

	// encode_tile returns a tile's codes of one format for cast i. Without a scale
	// w.scale is 1, which is exact.
	template <int FORMAT, int WORDS, class Scaled>
	__device__ void encode_tile(const Tile &t, int i, const float v[TILE_EACH][8], const Scaled &scaled, u32 words[TILE_EACH][WORDS]) const {
		const CastPlan &w = shared.plan[i];
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

	// place stores the codes of a tile, whole rows of eight.
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

	// place_transposed stores a tile of FP8 transposed. A half of the buffer is free
	// again after the barrier of the next call, when all threads have written it out.
	template <bool PLAIN> __device__ void place_transposed(Tile &t, u8 *out, u32 ld, const u32 codes[TILE_EACH][2]) const {
		TransposeBuffer<TILE_COLS> &buffer = transpose_buffer(t.second);
		t.second = !t.second;
#pragma unroll
		for (int r = 0; r < TILE_EACH; r++)
			buffer.put<1>(threadIdx.x / 32 * TILE_EACH + r, threadIdx.x % 32 * 8, codes[r]);
		__syncthreads();
		if (threadIdx.x < TILE_COLS / 4 * (TILE_ROWS / 8)) // the words of 8 rows
			buffer.template write<1, PLAIN>(threadIdx.x, out, ld, true, t.row0, t.col0, t.rows, t.cols);
	}

	// place_each stores a tile element by element: unaligned outputs, transposed wide
	// formats, formats that training on this device does not use, and BF16 of reduced
	// precision.
	template <class Scaled> __device__ void place_each(const Tile &t, int i, const float v[TILE_EACH][8], const Scaled &scaled) const {
		float *const sheet = (float *)transpose_buffer().words;
		__syncthreads(); // other threads may still read the last tile
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
		const bool transposed = casts.cast[i].flags & TRANSPOSE, pairs = casts.cast[i].format == E2M1;
		if (pairs)
			place_pairs(t, i, sheet);
#pragma unroll 1
		for (int e = pairs ? TILE_ROWS * TILE_COLS : threadIdx.x; e < TILE_ROWS * TILE_COLS; e += TILE_THREADS) {
			const int r = transposed ? e % TILE_ROWS : e / TILE_COLS, c = transposed ? e / TILE_ROWS : e % TILE_COLS;
			if (t.row0 + r < t.rows && t.col0 + c < t.cols)
				place1(i, sheet[r * TILE_COLS + c], t.row0 + r, t.col0 + c);
		}
		__syncthreads();
	}

	// store stores a tile, 8 elements of each of a thread's rows. scaled.with(i, t, r, v)
	// may modify the values for cast i. PLAIN requires a full tile and vectors.
	template <bool PLAIN, class Scaled> __device__ void store(Tile &t, const float v[TILE_EACH][8], const Scaled &scaled) {
		if (wants_amax)
			fold_tile<PLAIN>(t, v);
#pragma unroll 1
		for (int i = 0; i < (int)casts.n; i = shared.plan[i].next) {
			const CastPlan &w = shared.plan[i];
			const int mode = w.mode;
			if (!PLAIN && mode == EACH) {
				place_each(t, i, v, scaled);
			} else if (mode == F32) {
				u32 words[TILE_EACH][8];
#pragma unroll
				for (int r = 0; r < TILE_EACH; r++)
#pragma unroll
					for (int j = 0; j < 8; j++)
						words[r][j] = __float_as_uint(casts.cast[i].scale ? __fmul_rn(v[r][j], w.scale) : v[r][j]);
				place<4, PLAIN>(t, w.out, w.ld, words);
			} else if (mode == BF16) {
				u32 words[TILE_EACH][4];
				encode_tile<BF16>(t, i, v, scaled, words);
				place<2, PLAIN>(t, w.out, w.ld, words);
			} else {
				u32 codes[TILE_EACH][2];
				if (mode == E4M3)
					encode_tile<E4M3>(t, i, v, scaled, codes);
				else
					encode_tile<E5M2>(t, i, v, scaled, codes);
				if (w.out)
					place<1, PLAIN>(t, w.out, w.ld, codes);
				if (w.transposed)
					place_transposed<PLAIN>(t, w.transposed, w.ld_transposed, codes);
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
