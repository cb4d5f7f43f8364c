#include "adamw.cuh"

// adamw_begin clears the amaxes, unless they are given, and computes the step's rule of each
// tensor.
KERNEL(adamw_begin, AdamWArgs, ONE_THREADS, 1) {
	for (i64 i = threadIdx.x; i < 3 * a.n && !a.amax_given; i += ONE_THREADS)
		a.amaxes.out()[i] = 0.0f;
	for (i64 i = threadIdx.x; i < a.n; i += ONE_THREADS) {
		double lr = control_lr(a.control.i32());
		if (a.clip_rms > 0) {
			const double over = sqrt((double)a.mean_squares.f32()[i]) / a.clip_rms;
			lr /= over < 1 ? 1 : over; // NaN stays
		}
		a.scratch[i] = rule_of(a, lr, a.weight_decay);
	}
}

// adamw_amax computes the amaxes of the states with one scale. The rare path folds its
// maxima at once, so that it holds no registers for them beside those of its divisions.
KERNEL(adamw_amax, AdamWArgs, FLAT_THREADS, 3) {
	if (*a.skip.i32())
		return;
	const i64 at = index_of(a.list, a.n, blockIdx.x);
	__shared__ u32 peak[3];
	if (threadIdx.x < 3)
		peak[threadIdx.x] = 0;
	__shared__ Adam t;
	load_entry(t, a.list + at);
	if (!one_scale(t.state[0]) && !one_scale(t.state[1]) && !one_scale(t.state[2]))
		return;
	const Rule r = a.scratch[at];
	const Chunk c(t);
	const Quick q(t, c);
	const int whole = q.sound ? (c.end - c.from) & ~7 : 0;
	u32 top[3] = {};
	for (int i = threadIdx.x * 8; i < whole; i += FLAT_THREADS * 8) {
		float x[3][8];
		q.update(t, r, i, x);
#pragma unroll
		for (int k = 0; k < 3; k++)
			top[k] = top8(top[k], x[k]);
	}
#pragma unroll
	for (int k = 0; k < 3; k++)
		atomicMax(peak + k, top[k]);
	each_run(t, Chunk(c, whole), [&](int col, int n) {
		float x[3][8];
		update(t, r, c.row, col, n, x);
#pragma unroll
		for (int k = 0; k < 3; k++) {
			u32 top = 0;
#pragma unroll
			for (int i = 0; i < 8; i++)
				top = i < n ? max(top, magnitude(x[k][i])) : top;
			atomicMax(peak + k, top);
		}
	});
	__syncthreads();
	if (threadIdx.x < 3 && one_scale(t.state[threadIdx.x]))
		fold_amax(a.amaxes.out() + 3 * at + threadIdx.x, peak[threadIdx.x]);
}

// adamw_scale replaces amaxes by the scales to store with.
KERNEL(adamw_scale, AdamWArgs, FLAT_THREADS, 1) {
	const i64 i = (i64)blockIdx.x * FLAT_THREADS + threadIdx.x;
	if (i >= 3 * a.n || *a.skip.i32())
		return;
	const AdamState &s = a.list[i / 3].state[i % 3];
	if (one_scale(s))
		a.amaxes.out()[i] = scale_of(s, a.amaxes.f32()[i], *s.scale_inv, a.pow2);
}

// encode returns the codes of eight new values of a state, times scale. random is their
// random bits.
__device__ inline void encode(const AdamWArgs &a, const AdamState &s, float scale, bool floor, const u32 random[4], const float x[8], u32 w[8]) {
	float v[8];
#pragma unroll
	for (int i = 0; i < 8; i++)
		v[i] = __fmul_rn(x[i], scale);
	encode8(s.format, v, a.rounding, random, w);
	if (!floor)
		return;
	// In every format the code of the smallest value is 1. A word without a zero code is
	// unchanged.
	const int size = size_of(s.format);
	bool zero = false;
#pragma unroll
	for (int j = 0; j < 4; j++)
		zero |= size == 1 ? j < 2 && ((w[j] - 0x01010101u) & ~w[j] & 0x80808080u) : size == 2 && ((w[j] - 0x00010001u) & ~w[j] & 0x80008000u);
	if (zero)
#pragma unroll
		for (int i = 0; i < 8; i++) {
			if (size == 1 && x[i] > 0.0f && (w[i / 4] >> (i % 4 * 8) & 0xffu) == 0)
				w[i / 4] |= 1u << (i % 4 * 8);
			if (size == 2 && x[i] > 0.0f && (w[i / 2] >> (i % 2 * 16) & 0xffffu) == 0)
				w[i / 2] |= 1u << (i % 2 * 16);
		}
}

KERNEL(adamw, AdamWArgs, FLAT_THREADS, 2) {
	__shared__ u64 key[3];
	__shared__ Blocks blocks;
	if (*a.skip.i32())
		return;
	const i64 at = index_of(a.list, a.n, blockIdx.x);
	__shared__ Adam t;
	load_entry(t, a.list + at);
	const float *scales = a.amaxes.f32() + 3 * at;
	const Rule r = a.scratch[at];
	const Chunk c(t);
	if (threadIdx.x < 3)
		key[threadIdx.x] = a.rounding ? stream_key(a.control.i32(), t.state[threadIdx.x].name_key) : 0;
	const u64 first = a.shard ? a.split.index(control_rank(a.control.i32())) * (u64)(t.rows * t.cols) : 0;
	const bool blocked = t.state[1].block || t.state[2].block;
	if (blocked)
		blocks.find(t, r, c, a.pow2);
	__syncthreads();
	const Quick q(t, c);
	const u64 start = first + (u64)offset(c.row, t.cols, c.from);
	const int whole = q.sound && start % 8 == 0 ? (c.end - c.from) & ~7 : 0;
	float by[3];
#pragma unroll
	for (int k = 0; k < 3; k++)
		by[k] = t.state[k].scale_inv ? fabsf(scales[k]) : 1.0f;
	for (int i = threadIdx.x * 8; i < whole; i += FLAT_THREADS * 8) {
		float x[3][8];
		q.update(t, r, i, x);
#pragma unroll
		for (int k = 0; k < 3; k++) {
			u32 w[8], random[4];
			if (a.rounding)
				random8(key[k], start + (u32)i, random);
			encode(a, t.state[k], by[k], k == 2 && a.floor_v, random, x[k], w);
			const int size = size_of((int)t.state[k].format);
			store_vector(q.p[k] + (u32)i * size, w, 8 * size);
		}
	}
	each_run(t, Chunk(c, whole), [&](int col, int n) {
		float x[3][8];
		update(t, r, c.row, col, n, x);
		const i64 at = offset(c.row, t.cols, col);
#pragma unroll
		for (int k = 0; k < 3; k++) {
			const AdamState &s = t.state[k];
			const float scale = s.block ? blocks.prepare(s, k, col - c.from, n, x[k]) : by[k];
			u32 w[8], random[4];
			if (a.rounding)
#pragma unroll
				for (int i = 0; i < 8; i += 2)
					random[i / 2] = random_bits(key[k], first + at + i) >> 16 | random_bits(key[k], first + at + i + 1);
			encode(a, s, scale, k == 2 && a.floor_v, random, x[k], w);
			store8(s.p, at, size_of(s.format), n, w);
		}
	});
	if (!blocked)
		return;
	__syncthreads();
	blocks.write(t, c);
}

// adamw_end stores scale_inv of the new codes, after all old codes are decoded.
KERNEL(adamw_end, AdamWArgs, FLAT_THREADS, 1) {
	const i64 i = (i64)blockIdx.x * FLAT_THREADS + threadIdx.x;
	if (i >= 3 * a.n || *a.skip.i32())
		return;
	const AdamState &s = a.list[i / 3].state[i % 3];
	const float scale = a.amaxes.f32()[i];
	if (one_scale(s) && scale > 0.0f)
		*s.scale_inv = __fdiv_rn(1.0f, scale);
}
