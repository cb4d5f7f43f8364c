// quantize: by tiles (tile.cuh). Casts with block scales use quantize_scales and
// quantize_blocks instead. amax_columns: by strips (strips.cuh). amax, cast_health: see
// flat.cuh.
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
		const u32 code = mx_scale(amax, largest_of(c.format));
		((u8 *)c.scale_inv)[at] = (u8)code;
		*scale = e8m0_value((254 - code) & 0xff); // NaN is its own inverse
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

// CastSums are the counts and sums of one thread block.
struct CastSums {
	u64 saturated, flushed;
	f64 signal, noise; // sums of x^2 and of (x - value)^2
	u64 amax;          // the bits of max |x|
};

struct CastHealthArgs {
	Tensor x, codes, out;
	i64 rows, cols;
	i64 scales;                  // of codes
	i64 block_rows, block_cols;  // elements that share a scale
	i64 e8m0;                    // the scales are E8M0, else F32
	CastSums *scratch;

	__device__ f64 scale(i64 i) const {
		if (e8m0)
			return (f64)e8m0_value(((const u8 *)codes.scale)[i]);
		return (f64)codes.scale[i];
	}

	// zero_block reads block i of x up to its first element that is not zero.
	__device__ bool zero_block(i64 i) const {
		const i64 across = (cols + block_cols - 1) / block_cols;
		const i64 top = i / across * block_rows, left = i % across * block_cols;
		for (i64 row = top; row < min(rows, top + block_rows); row++)
			for (i64 col = left; col < min(cols, left + block_cols); col++) {
				float v[8];
				load8(x, row, col, 1, v);
				if (magnitude(v[0]) != 0)
					return false;
			}
		return true;
	}
};

// cast_health: sums are FP64, in an order that depends on the shape alone.
KERNEL(cast_health, CastHealthArgs, FLAT_THREADS, 1) {
	// Half a step above the largest value: fp8.DType.ClipLimit.
	const i64 format = a.codes.format;
	const f64 limit = format == E4M3 ? 464.0 : format == E4M3IEEE ? 248.0 : 61440.0;
	const i64 across = (a.cols + a.block_cols - 1) / a.block_cols;
	const bool gaps = a.scales > 1 || a.rows > 1 && (a.x.ld != a.cols || a.codes.ld != a.cols);
	u32 saturated = 0, flushed = 0, amax = 0;
	f64 signal = 0.0, noise = 0.0;
	each_flat(a.rows, a.cols, gaps, [&](i64 row, i64 col, int n) {
		float v[8];
		load8(a.x, row, col, n, v);
		const u8 *codes = (const u8 *)a.codes.p + row * a.codes.ld + col;
		const f64 scale = a.scale(a.scales > 1 ? row / a.block_rows * across + col / a.block_cols : 0);
#pragma unroll
		for (int i = 0; i < 8; i++) {
			if (i >= n)
				break;
			const f64 x = v[i], value = (f64)decode1(format, codes[i]), d = x - value * scale;
			saturated += fabs(x) > limit * scale;
			flushed += value == 0.0 && fabs(x) > 0.0;
			signal += x * x;
			noise += d * d;
			amax = max(amax, magnitude(v[i]));
		}
	});
	saturated = block_sum(saturated), flushed = block_sum(flushed), amax = block_max(amax);
	signal = block_sum(signal), noise = block_sum(noise);
	if (threadIdx.x == 0)
		a.scratch[blockIdx.x] = {saturated, flushed, signal, noise, amax};
}

KERNEL(cast_health_end, CastHealthArgs, ONE_THREADS, 1) {
	const i64 elems = a.rows * a.cols;
	u64 saturated = 0, flushed = 0;
	f64 signal = 0.0, noise = 0.0;
	u32 amax = 0;
	for (i64 i = threadIdx.x; i < flat_blocks(elems); i += ONE_THREADS) {
		const CastSums &s = a.scratch[i];
		saturated += s.saturated, flushed += s.flushed;
		signal += s.signal, noise += s.noise;
		amax = max(amax, (u32)s.amax);
	}
	// Scales are positive or NaN, so their bits are ordered like their values. The
	// logarithms are relative to the first, so equal scales have zero spread.
	const f64 first = log2(a.scale(0));
	f64 sum = 0.0, squares = 0.0;
	u32 largest = 0, below = 0; // the minimum, as the maximum of ~bits
	u64 zero = 0, low = 0, high = 0;
	const f64 lowest = a.e8m0 ? 0x1p-127 : 0x1p-126, highest = a.e8m0 ? 0x1p127 : 0x1p126; // fp8.DType.ScaleRange
	for (i64 i = threadIdx.x; i < a.scales; i += ONE_THREADS) {
		const f64 s = a.scale(i), d = log2(s) - first;
		const u32 bits = magnitude((float)s);
		sum += d, squares += d * d;
		largest = max(largest, bits), below = max(below, ~bits);
		low += s <= lowest, high += s >= highest;
		zero += a.scales > 1 && a.zero_block(i);
	}
	zero = block_sum(zero), low = block_sum(low), high = block_sum(high);
	saturated = block_sum(saturated), flushed = block_sum(flushed), amax = block_max(amax);
	signal = block_sum(signal), noise = block_sum(noise);
	sum = block_sum(sum), squares = block_sum(squares);
	largest = block_max(largest), below = block_max(below);
	if (threadIdx.x != 0)
		return;
	float *out = a.out.out();
	const f64 n = (f64)a.scales, mean = sum / n;
	const bool number = largest <= 0x7f800000u;
	out[0] = (float)((f64)saturated / (f64)elems);
	out[1] = (float)((f64)flushed / (f64)elems);
	out[2] = (float)(noise == 0.0 ? 0.0 : noise / signal); // for a zero tensor both are 0
	out[3] = __uint_as_float(amax);
	out[4] = __uint_as_float(number ? ~below : largest);
	out[5] = __uint_as_float(largest);
	out[6] = (float)(first + mean);
	out[8] = (float)(amax == 0 ? 1.0 : (f64)zero / n);
	out[9] = (float)((f64)low / n);
	out[10] = (float)((f64)high / n);
	out[11] = 1.0f;
	out[7] = number ? (float)sqrt(fmax(0.0, squares / n - mean * mean)) : __uint_as_float(largest); // fmax drops a NaN
}
