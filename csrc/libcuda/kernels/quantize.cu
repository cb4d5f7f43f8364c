// quantize: by tiles (tile.cuh). Casts with block scales use quantize_scales and
// quantize_blocks instead. amax_columns: by strips (strips.cuh). amax: see flat.cuh.
#include "flat.cuh"
#include "strips.cuh"

struct QuantizeArgs {
	Tensor x, row_scale, col_scale;
	Casts out;
	i64 rows, cols;
	float *scratch; // the scales of all casts with block scales, concatenated
};

// Blocks maps the blocks of a cast to X.
struct Blocks {
	i64 height, width;       // in X
	i64 across;              // blocks per row of Out
	i64 count;
	bool transposed;

	__device__ Blocks(const Cast &c, i64 rows, i64 cols) : transposed(c.flags & TRANSPOSE) {
		const i64 out_rows = transposed ? cols : rows, out_cols = transposed ? rows : cols;
		const i64 h = c.block_rows ? c.block_rows : out_rows, w = c.block_cols ? c.block_cols : out_cols;
		across = (out_cols + w - 1) / w;
		count = (out_rows + h - 1) / h * across;
		height = transposed ? w : h;
		width = transposed ? h : w;
	}
	__device__ i64 at(i64 row, i64 col) const {
		const i64 i = row / height, j = col / width;
		return transposed ? j * across + i : i * across + j;
	}
};

// quantized returns X as the casts see it; each multiplication is rounded.
__device__ inline float quantized(const QuantizeArgs &a, i64 row, i64 col) {
	float x = load_value(a.x, row, col);
	if (a.row_scale.p)
		x = __fmul_rn(x, a.row_scale.f32()[row]);
	if (a.col_scale.p)
		x = __fmul_rn(x, a.col_scale.f32()[col]);
	return x;
}

// write_scale stores scale_inv of a block with this amax, and returns its scale: see
// backend.Cast.
__device__ inline void write_scale(const Cast &c, i64 at, u32 top, float *scale) {
	const float amax = __uint_as_float(top);
	if (c.flags & SCALE_E8M0) {
		const u32 code = mx_scale(amax, largest_of(c.format), !(c.flags & SCALE_DOWN));
		((u8 *)c.scale_inv)[at] = (u8)code;
		*scale = e8m0_value((254 - code) & 0xff); // NaN is its own inverse
		return;
	}
	if (c.flags & SCALE_E4M3) {
		const float outer = c.scale ? *c.scale : 1.0f;
		u32 code = 0x7f;
		*scale = __uint_as_float(0x7fc00000u);
		if (finite(amax) && !(magnitude(outer) > 0x7f800000u)) {
			code = encode_bits<E4M3, false>(fminf(__fmul_rn(amax, __fmul_rn(outer, __fdiv_rn(1.0f, largest_of(c.format)))), 448.0f), 0);
			*scale = fminf(__fdiv_rn(1.0f, __fmul_rn(widen<E4M3>(code), __fdiv_rn(1.0f, outer))), 0x1.fffffep127f);
		}
		((u8 *)c.scale_inv)[at] = (u8)code;
		return;
	}
	const Scale s = scale_for(amax, (float)c.limit, c.flags & POW2);
	*scale = s.scale;
	((float *)c.scale_inv)[at] = s.ok || top == 0 ? __fdiv_rn(1.0f, s.scale) : __uint_as_float(0x7fc00000u);
}

// quantize_scales: a warp per block; if blocks are one column wide, a lane per block, so
// that loads are coalesced.
KERNEL(quantize_scales, QuantizeArgs, FLAT_THREADS, 1) {
	i64 task = (i64)blockIdx.x * (FLAT_THREADS / 32) + threadIdx.x / 32;
	const int lane = threadIdx.x % 32;
	float *scales = a.scratch;
	for (int i = 0; i < a.out.n; i++) {
		const Cast &c = a.out.cast[i];
		if (!by_block(c))
			continue;
		const Blocks b(c, a.rows, a.cols);
		if (task >= b.count) {
			task -= b.count;
			scales += b.count;
			continue;
		}
		u32 top = 0;
		if (b.width == 1) {
			const i64 groups = (a.cols + 31) / 32;
			const i64 row0 = task / groups * b.height, col = task % groups * 32 + lane;
			if (row0 >= a.rows || col >= a.cols)
				return;
			for (i64 row = row0; row < min(a.rows, row0 + b.height); row++)
				top = max(top, magnitude(quantized(a, row, col)));
			const i64 at = b.at(row0, col);
			write_scale(c, at, top, scales + at);
			return;
		}
		const i64 down = b.transposed ? task % b.across : task / b.across;
		const i64 beside = b.transposed ? task / b.across : task % b.across;
		const i64 row0 = down * b.height, col0 = beside * b.width;
		const i64 height = min(a.rows - row0, b.height), width = min(a.cols - col0, b.width);
		for (i64 e = lane; e < height * width; e += 32)
			top = max(top, magnitude(quantized(a, row0 + e / width, col0 + e % width)));
		top = warp_max(top);
		if (lane == 0)
			write_scale(c, task, top, scales + task);
		return;
	}
}

// BlockScaled multiplies the elements of a cast by its block scales.
struct BlockScaled {
	const QuantizeArgs &a;

	__device__ void with(int cast, const Tile &t, int r, float v[8]) const {
		if (!by_block(a.out.cast[cast]))
			return;
		const float *scales = a.scratch;
		for (int i = 0; i < cast; i++)
			if (by_block(a.out.cast[i]))
				scales += Blocks(a.out.cast[i], a.rows, a.cols).count;
		const Blocks b(a.out.cast[cast], a.rows, a.cols);
#pragma unroll
		for (int j = 0; j < 8; j++)
			if (j < t.n(r))
				v[j] = __fmul_rn(v[j], scales[b.at(t.row + r, t.col + j)]);
	}
};

template <bool BLOCKS, bool PLAIN> __device__ inline void quantize_tile(const QuantizeArgs &a, const Operands<1> &x, Tile &t, Result &out) {
	float v[TILE_EACH][8];
	t.each_row<PLAIN>(x, [&](int r, const float x[1][8]) {
#pragma unroll
		for (int i = 0; i < 8; i++)
			v[r][i] = x[0][i];
	});
	scale_tile(t, a.row_scale, a.col_scale, v);
	if constexpr (BLOCKS)
		out.store<false>(t, v, BlockScaled{a});
	else
		out.store<PLAIN>(t, v);
}

template <bool BLOCKS> __device__ inline void quantize_tiles(const QuantizeArgs &a, Result::Shared &shared) {
	Result out(a.out, a.cols, shared);
	const Operands<1> x({&a.x});
	const bool plain = !BLOCKS && x.plain && out.vectors;
	for (Tile t(a.rows, a.cols, TILE_SPAN); t.more(); t.next())
		if (plain && t.full())
			quantize_tile<BLOCKS, !BLOCKS>(a, x, t, out);
		else
			quantize_tile<BLOCKS, false>(a, x, t, out);
	out.end();
}

KERNEL(quantize, QuantizeArgs, TILE_THREADS, 2) {
	__shared__ Result::Shared shared;
	quantize_tiles<false>(a, shared);
}

KERNEL(quantize_blocks, QuantizeArgs, TILE_THREADS, 2) {
	__shared__ Result::Shared shared;
	quantize_tiles<true>(a, shared);
}

struct AmaxArgs {
	Tensor x, out;
	i64 rows, cols;
	float *scratch;
};

KERNEL(amax_columns, AmaxArgs, TILE_THREADS, 2) {
	Columns columns;
	each_strip_row<1>({&a.x}, a.rows, a.cols, [&](const float v[1][8]) { columns.fold(v[0]); });
	columns.write(a.scratch, a.cols);
}

KERNEL(amax_columns_end, AmaxArgs, FLAT_THREADS, 1) {
	const i64 col = (i64)blockIdx.x * FLAT_THREADS + threadIdx.x;
	if (col < a.cols)
		a.out.out()[col] = __uint_as_float(strips_max(a.scratch, a.rows, a.cols, col));
}

KERNEL(amax, AmaxArgs, FLAT_THREADS, 1) {
	u32 top = 0;
	each_flat(a.rows, a.cols, a.x.ld != a.cols && a.rows > 1, [&](i64 row, i64 col, int n) {
		float v[8];
		load8(a.x, row, col, n, v);
		top = top8(top, v);
	});
	top = block_max(top);
	if (threadIdx.x == 0)
		a.scratch[blockIdx.x] = __uint_as_float(top);
}

KERNEL(amax_end, AmaxArgs, ONE_THREADS, 1) {
	u32 top = 0;
	for (i64 i = threadIdx.x; i < flat_blocks(a.rows * a.cols); i += ONE_THREADS)
		top = max(top, magnitude(a.scratch[i]));
	top = block_max(top);
	if (threadIdx.x == 0)
		*a.out.out() = __uint_as_float(top);
}
