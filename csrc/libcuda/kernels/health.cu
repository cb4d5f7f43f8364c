// cast_health: see flat.cuh.
#include "flat.cuh"

// CastSums are the counts and sums of one thread block.
struct CastSums {
	u64 saturated, flushed;
	f64 signal, noise, fourth; // sums of x^2, (x - value)^2 and x^4
	u64 amax;                  // the bits of max |x|
};

struct CastHealthArgs {
	Tensor x, codes, out;
	i64 rows, cols;
	i64 scales;                 // of codes
	i64 block_rows, block_cols; // elements that share a scale
	i64 scale_format;           // F32, E8M0 or E4M3
	f64 lowest, highest;        // fp8.DType.ScaleRange of that format
	f64 limit;                  // fp8.DType.ClipLimit of codes
	const float *outer;         // null is 1
	CastSums *scratch;

	__device__ f64 scale(i64 i) const {
		if (scale_format == F32)
			return (f64)codes.scale[i];
		const u32 code = ((const u8 *)codes.scale)[i];
		return (f64)(scale_format == E8M0 ? e8m0_value(code) : widen<E4M3>(code));
	}
	// value returns the value of code at of codes, without scales.
	__device__ f64 value(i64 at) const {
		const u8 *p = (const u8 *)codes.p;
		if (codes.format == E2M1)
			return (f64)widen<E2M1>(p[at / 2] >> at % 2 * 4 & 15);
		return (f64)decode1(codes.format, p[at]);
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
	const f64 outer = a.outer ? *a.outer : 1.0f;
	const i64 across = (a.cols + a.block_cols - 1) / a.block_cols;
	const bool gaps = a.scales > 1 || a.rows > 1 && (a.x.ld != a.cols || a.codes.ld != a.cols);
	u32 saturated = 0, flushed = 0, amax = 0;
	f64 signal = 0.0, noise = 0.0, fourth = 0.0;
	each_flat(a.rows, a.cols, gaps, [&](i64 row, i64 col, int n) {
		float v[8];
		load8(a.x, row, col, n, v);
		const f64 scale = outer * a.scale(a.scales > 1 ? row / a.block_rows * across + col / a.block_cols : 0);
#pragma unroll
		for (int i = 0; i < 8; i++) {
			if (i >= n)
				break;
			const f64 x = v[i], value = a.value(row * a.codes.ld + col + i), d = x - value * scale;
			saturated += scale != 0.0 && fabs(x) > a.limit * scale;
			flushed += (value == 0.0 || scale == 0.0) && fabs(x) > 0.0;
			signal += x * x;
			fourth += x * x * (x * x);
			noise += d * d;
			amax = max(amax, magnitude(v[i]));
		}
	});
	saturated = block_sum(saturated), flushed = block_sum(flushed), amax = block_max(amax);
	signal = block_sum(signal), noise = block_sum(noise), fourth = block_sum(fourth);
	if (threadIdx.x == 0)
		a.scratch[blockIdx.x] = {saturated, flushed, signal, noise, fourth, amax};
}

KERNEL(cast_health_end, CastHealthArgs, ONE_THREADS, 1) {
	const i64 elems = a.rows * a.cols;
	u64 saturated = 0, flushed = 0;
	f64 signal = 0.0, noise = 0.0, fourth = 0.0;
	u32 amax = 0;
	for (i64 i = threadIdx.x; i < flat_blocks(elems); i += ONE_THREADS) {
		const CastSums &s = a.scratch[i];
		saturated += s.saturated, flushed += s.flushed;
		signal += s.signal, noise += s.noise, fourth += s.fourth;
		amax = max(amax, (u32)s.amax);
	}
	// Scales are positive, 0 or NaN, so their bits are ordered like their values. The
	// logarithms are relative to the first scale that is not 0, so equal scales have zero
	// spread.
	u32 before = 0; // that scale's index, as the maximum of ~index
	u64 zero = 0, low = 0, high = 0, empty = 0;
	for (i64 i = threadIdx.x; i < a.scales; i += ONE_THREADS)
		if (a.scale(i) == 0.0)
			empty++;
		else
			before = max(before, ~(u32)i);
	empty = block_sum(empty), before = block_max(before);
	const f64 first = empty < a.scales ? log2(a.scale(~before)) : 0.0;
	f64 sum = 0.0, squares = 0.0;
	u32 largest = 0, below = 0; // the minimum, as the maximum of ~bits
	for (i64 i = threadIdx.x; i < a.scales; i += ONE_THREADS) {
		const f64 s = a.scale(i);
		low += s <= a.lowest, high += s >= a.highest;
		zero += a.scales > 1 && a.zero_block(i);
		if (s == 0.0)
			continue;
		const f64 d = log2(s) - first;
		const u32 bits = magnitude((float)s);
		sum += d, squares += d * d;
		largest = max(largest, bits), below = max(below, ~bits);
	}
	zero = block_sum(zero), low = block_sum(low), high = block_sum(high);
	saturated = block_sum(saturated), flushed = block_sum(flushed), amax = block_max(amax);
	signal = block_sum(signal), noise = block_sum(noise), fourth = block_sum(fourth);
	sum = block_sum(sum), squares = block_sum(squares);
	largest = block_max(largest), below = block_max(below);
	if (threadIdx.x != 0)
		return;
	float *out = a.out.out();
	const f64 scales = (f64)a.scales, n = (f64)(a.scales - (i64)empty), mean = n > 0.0 ? sum / n : 0.0;
	const bool number = largest <= 0x7f800000u;
	out[0] = (float)((f64)saturated / (f64)elems);
	out[1] = (float)((f64)flushed / (f64)elems);
	out[2] = (float)(noise == 0.0 ? 0.0 : noise / signal); // for a zero tensor both are 0
	out[3] = __uint_as_float(amax);
	out[4] = __uint_as_float(!number ? largest : n > 0.0 ? ~below : 0);
	out[5] = __uint_as_float(largest);
	out[6] = (float)(first + mean);
	out[7] = number ? (float)sqrt(fmax(0.0, n > 0.0 ? squares / n - mean * mean : 0.0)) : __uint_as_float(largest); // fmax drops a NaN
	out[8] = (float)(amax == 0 ? 1.0 : (f64)zero / scales);
	out[9] = (float)((f64)low / scales);
	out[10] = (float)((f64)high / scales);
	out[11] = a.outer ? *a.outer : 1.0f;
	out[12] = (float)sqrt(signal / (f64)elems);
	out[13] = (float)(signal == 0.0 ? 0.0 : fourth / signal * (f64)elems / signal);
}
