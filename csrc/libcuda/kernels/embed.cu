// embed, cache_write: by tiles (tile.cuh). embed_grad: a block per token and 2048
// columns, after embed_grad_begin.
#include "tile.cuh"

struct EmbedArgs {
	Tensor table, ids, control;
	Casts out;
	i64 rows, cols, vocab;
	Group split;
	void *scratch;
};

// embed writes zeros for a token of another part of the table, and NaN for one outside the whole
// table, so that the loss becomes NaN.
KERNEL(embed, EmbedArgs, TILE_THREADS, 2) {
	__shared__ Result::Shared shared;
	Result out(a.out, a.cols, shared);
	Tile t(a.rows, a.cols, TILE_SPAN);
	const Vocabulary part(a.split, a.control.i32(), a.vocab);
	int id[TILE_EACH]; // the row, or one of these
	enum { OTHER = -1, INVALID = -2 };
#pragma unroll
	for (int r = 0; r < TILE_EACH; r++) {
		const i64 given = t.row + r < a.rows ? a.ids.i32()[t.row + r] : 0, row = given - part.first;
		id[r] = row >= 0 && row < part.n ? (int)row : given >= 0 && given < part.all ? OTHER : INVALID;
	}
	for (; t.more(); t.next()) {
		float v[TILE_EACH][8];
#pragma unroll
		for (int r = 0; r < TILE_EACH; r++) {
			load8(a.table, max(id[r], 0), t.col, t.n(r), v[r]);
#pragma unroll
			for (int i = 0; i < 8; i++)
				v[r][i] = id[r] >= 0 ? v[r][i] : id[r] == OTHER ? 0.0f : __uint_as_float(0x7fc00000u);
		}
		out.store(t, v);
	}
	out.end();
}

struct EmbedGradArgs {
	Tensor ids, dout, control, dtable;
	i64 rows, cols, vocab, accumulate;
	Group split;
	void *scratch;
};

// embed_grad_begin clears the table's gradient unless it accumulates.
KERNEL(embed_grad_begin, EmbedGradArgs, FLAT_THREADS, 1) {
	if (a.accumulate)
		return;
	for (i64 row = blockIdx.x; row < a.vocab; row += gridDim.x)
		for (i64 col = threadIdx.x; col < a.cols; col += FLAT_THREADS)
			a.dtable.out()[row * a.dtable.ld + col] = 0.0f;
}

// embed_grad adds in token order: the block of an id's first token adds the rows of all
// its tokens; other blocks, and those of an id of another part, return at once. Reading all ids
// is cheap compared with the rows.
KERNEL(embed_grad, EmbedGradArgs, FLAT_THREADS, 1) {
	const int *ids = a.ids.i32();
	const i64 token = blockIdx.x;
	const int id = ids[token];
	const Vocabulary part(a.split, a.control.i32(), a.vocab);
	const i64 row = id - part.first;
	if (row < 0 || row >= part.n)
		return;
	int earlier = 0;
	for (i64 i = threadIdx.x; i < token; i += FLAT_THREADS)
		earlier |= ids[i] == id;
	if (__syncthreads_or(earlier))
		return;
	const i64 col = (i64)blockIdx.y * 8 * FLAT_THREADS + threadIdx.x * 8;
	const int n = (int)max(0ll, min(8ll, a.cols - col));
	float *grad = a.dtable.out() + row * a.dtable.ld + col, sum[8];
#pragma unroll
	for (int i = 0; i < 8; i++)
		sum[i] = i < n ? grad[i] : 0.0f;
	__shared__ int found[FLAT_THREADS], count[FLAT_THREADS / 32];
	for (i64 from = token; from < a.rows; from += FLAT_THREADS) {
		// The tokens of this chunk with the id, in order.
		const i64 mine = from + threadIdx.x;
		const u32 votes = __ballot_sync(ALL, mine < a.rows && ids[mine] == id);
		const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
		if (lane == 0)
			count[warp] = __popc(votes);
		__syncthreads();
		int before = 0, total = 0;
		for (int w = 0; w < FLAT_THREADS / 32; w++) {
			before += w < warp ? count[w] : 0;
			total += count[w];
		}
		if (votes >> lane & 1)
			found[before + __popc(votes & ((1u << lane) - 1))] = (int)(mine - from);
		__syncthreads();
#pragma unroll 4
		for (int k = 0; k < total; k++) {
			float v[8];
			load8(a.dout, from + found[k], col, n, v);
#pragma unroll
			for (int i = 0; i < 8; i++)
				sum[i] += v[i];
		}
		__syncthreads();
	}
#pragma unroll
	for (int i = 0; i < 8; i++)
		if (i < n)
			grad[i] = sum[i];
}

struct CacheWriteArgs {
	Tensor x, control, cache;
	i64 rows, cols, cache_rows, batch;
	void *scratch;
};

// cache_write skips positions outside the cache; the host checks them.
KERNEL(cache_write, CacheWriteArgs, TILE_THREADS, 2) {
	Tile t(a.rows, a.cols, TILE_SPAN);
	const i64 n = a.rows / a.batch, capacity = a.cache_rows / a.batch;
	for (; t.more(); t.next())
#pragma unroll
		for (int r = 0; r < TILE_EACH; r++) {
			const i64 row = t.row + r, at = control_position(a.control.i32()) + row % n;
			if (at < 0 || at >= capacity)
				continue;
			const int size = size_of(a.cache.format);
			const Eight e = fetch8<true>(a.x.p, offset(row, a.x.ld, t.col), size, t.n(r));
			store8(a.cache.p, (row / n * capacity + at) * a.cache.ld + t.col, size, t.n(r), e.w);
		}
}
