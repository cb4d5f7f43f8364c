// A block takes a part of SPAN elements of State, which with block scales is one block of these.
#include "formats.cuh"

struct LinearUpdateArgs {
	Tensor x, state, state_scale, coef, control, skip, next;
	i64 rows, cols; // of State; one row without block scales
	i64 block, span;
	u64 name_key;
	f64 keep, decay, gain, rate;
	i64 rounding, pow2;
	u32 *scratch; // the amax of a State with one scale
};

template <> struct Facts<INT8> { enum { MANTISSA = 7, WIDTH = 7, SMALLEST = 134, TOP = 127 }; };

// integer_code returns the code of a value in two's complement.
__device__ inline u32 integer_code(float x, bool stochastic, u32 random) {
	const u32 code = encode1<INT8>(x, stochastic, random), a = code & 0x7fu;
	return (code & 0x80u ? 0u - a : a) & 0xffu;
}

struct Linear {
	float a, b;

	__device__ Linear(const LinearUpdateArgs &args) {
		const double lr = control_lr(args.control.i32()), coef = args.coef.p ? *args.coef.f32() : 1.0;
		a = (float)(args.keep - lr * args.decay), b = (float)(coef * (args.gain - lr * args.rate));
	}
	__device__ float operator()(float state, float x) const { return __fadd_rn(__fmul_rn(a, state), __fmul_rn(b, x)); }
};

struct Part {
	i64 from, end;

	__device__ Part(const LinearUpdateArgs &a) {
		const i64 across = (a.cols + a.span - 1) / a.span, row = blockIdx.x / across;
		from = row * a.cols + blockIdx.x % across * a.span;
		end = min((row + 1) * a.cols, from + a.span);
	}
	// each calls f(at, n) for a thread's elements, at most 8 at a time.
	template <class F> __device__ void each(const F &f) const {
		for (i64 at = from + threadIdx.x * 8; at < end; at += FLAT_THREADS * 8)
			f(at, (int)min(8ll, end - at));
	}
};

// updated computes up to eight new values from element at, and loads their part of X. Zeros
// follow the last one.
__device__ inline void updated(const LinearUpdateArgs &a, const Linear &by, float scale_inv, i64 at, int n, float v[8], float x[8]) {
	const int format = (int)a.state.format;
	load8(a.x, 0, at, n, x);
	const Eight e = fetch8<false>(a.state.p, at, size_of(format), n);
	if (format == INT8)
		for (int i = 0; i < 8; i++)
			v[i] = (float)(signed char)(e.w[i / 4] >> (i % 4 * 8));
	else
		decode8(format, e, v);
#pragma unroll
	for (int i = 0; i < 8; i++)
		v[i] = i < n ? by(__fmul_rn(v[i], scale_inv), x[i]) : 0.0f;
}

// scale_from returns the scale for new values with this amax; the old one, negative, if the amax
// gives none.
__device__ inline float scale_from(const LinearUpdateArgs &a, u32 amax, float old) {
	const Scale fresh = scale_for(__uint_as_float(amax), a.state.format == INT8 ? 127.0f : largest_of(a.state.format), a.pow2);
	return fresh.ok || old == 0.0f ? fresh.scale : -__fdiv_rn(1.0f, old);
}

KERNEL(linear_update_begin, LinearUpdateArgs, ONE_THREADS, 1) {
	if (threadIdx.x == 0)
		*a.scratch = 0;
}

KERNEL(linear_update_amax, LinearUpdateArgs, FLAT_THREADS, 1) {
	if (*a.skip.i32())
		return;
	const Linear by(a);
	const float old = *a.state_scale.f32();
	u32 top = 0;
	Part(a).each([&](i64 at, int n) {
		float v[8], x[8];
		updated(a, by, old, at, n, v, x);
		top = top8(top, v);
	});
	top = block_max(top);
	if (threadIdx.x == 0)
		atomicMax(a.scratch, top);
}

KERNEL(linear_update, LinearUpdateArgs, FLAT_THREADS, 1) {
	const Part part(a);
	if (*a.skip.i32()) {
		for (i64 at = part.from + threadIdx.x; a.next.p && at < part.end; at += FLAT_THREADS)
			a.next.out()[at] = 0.0f;
		return;
	}
	const Linear by(a);
	float *const stored = a.state_scale.p ? a.state_scale.out() + (a.block ? blockIdx.x : 0) : nullptr;
	const float old = stored ? *stored : 1.0f;
	float scale = 1.0f;
	if (a.block) {
		u32 top = 0;
		part.each([&](i64 at, int n) {
			float v[8], x[8];
			updated(a, by, old, at, n, v, x);
			top = top8(top, v);
		});
		scale = scale_from(a, block_max(top), old);
		if (threadIdx.x == 0 && scale > 0.0f) // all threads have read the old one
			*stored = __fdiv_rn(1.0f, scale);
	} else if (stored) {
		scale = scale_from(a, *a.scratch, old);
	}
	const u64 key = a.rounding ? stream_key(a.control.i32(), a.name_key) : 0;
	part.each([&](i64 at, int n) {
		float v[8], x[8];
		updated(a, by, old, at, n, v, x);
		u32 w[8] = {}, random[4];
#pragma unroll
		for (int i = 0; i < 8; i++) {
			if (a.next.p && i < n)
				a.next.out()[at + i] = by(v[i], x[i]);
			v[i] = __fmul_rn(v[i], fabsf(scale));
			if (i % 2)
				random[i / 2] = a.rounding ? random_bits(key, at + i - 1) >> 16 | random_bits(key, at + i) : 0;
		}
		if (a.state.format == INT8)
#pragma unroll
			for (int i = 0; i < 8; i++)
				w[i / 4] |= integer_code(v[i], a.rounding, i % 2 ? random[i / 2] & 0xffff0000u : random[i / 2] << 16) << (i % 4 * 8);
		else
			encode8((int)a.state.format, v, a.rounding, random, w);
		store8(a.state.p, at, size_of((int)a.state.format), n, w);
	});
}

// linear_update_end stores scale_inv of the new codes, after all old codes are decoded.
KERNEL(linear_update_end, LinearUpdateArgs, ONE_THREADS, 1) {
	if (threadIdx.x || *a.skip.i32())
		return;
	const float scale = scale_from(a, *a.scratch, *a.state_scale.f32());
	if (scale > 0.0f)
		*a.state_scale.out() = __fdiv_rn(1.0f, scale);
}
