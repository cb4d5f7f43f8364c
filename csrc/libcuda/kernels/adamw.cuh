// The arithmetic of AdamW on a table of parameters, split into chunks, one per block
// (tables.go builds the table).
#pragma once
#include "formats.cuh"

const int ADAM_BLOCKS = 512; // block scales per moment and chunk

struct AdamState {
	void *p;
	float *scale_inv; // null for F32 and BF16
	i64 format;
	i64 block; // elements of a row per scale; 0: one scale for all
	i64 expand; // a block has s, k and c in place of scale_inv
	u64 name_key;
};

struct Adam {
	const void *grad;
	const float *grad_scale; // scale_inv; null is 1
	i64 grad_format;
	i64 ld, rows, cols;
	i64 first, span; // the first chunk, and the columns per chunk
	AdamState state[3]; // master, first and second moment
};

// Rule is the arithmetic of one step, which rule_of computes in float64.
struct alignas(16) Rule {
	float coef, l2, beta1, rest1, beta2, rest2, decay, rate, root_scale, epsilon;
	int mild; // root_scale and epsilon are in the range of the fast path of directions
};

struct AdamWArgs {
	const Adam *list;
	i64 n, chunks;
	Tensor control, step, coef, skip, mean_squares, amaxes; // amaxes: [3n], then scales
	f64 beta1, beta2, eps, weight_decay, l2, clip_rms;
	i64 eps_form, rounding, pow2, floor_v, amax_only, amax_given, shard;
	Group split;
	Rule *scratch;
};

// rule_of returns the rule for a learning rate, from the arguments of AdamW or UpdateStats, whose
// settings are float32; 1−β is the float64 difference, rounded.
template <class A> __device__ inline Rule rule_of(const A &a, double lr, double weight_decay) {
	const double t = *a.step.i32(), correction1 = 1 - pow(a.beta1, t), root2 = sqrt(1 - pow(a.beta2, t));
	Rule r;
	r.coef = *a.coef.f32(), r.l2 = (float)a.l2;
	r.beta1 = (float)a.beta1, r.rest1 = (float)(1 - a.beta1);
	r.beta2 = (float)a.beta2, r.rest2 = (float)(1 - a.beta2);
	r.decay = (float)(1 - lr * weight_decay);
	r.epsilon = (float)a.eps;
	r.rate = (float)(a.eps_form ? lr / correction1 : lr * root2 / correction1);
	r.root_scale = a.eps_form ? (float)(1 / root2) : 1.0f;
	r.mild = r.root_scale >= 1.0f && r.root_scale <= 0x1p20f && r.epsilon >= 0.0f && r.epsilon <= 0x1p20f;
	return r;
}

// Chunk is a block's part of a tensor. Rows and columns are below 2^31 (see offset), which
// halves the registers of loops.
struct Chunk {
	int row, from, end;

	__device__ Chunk(const Adam &t) {
		const int span = (int)t.span, across = ((int)t.cols - 1) / span + 1, chunk = (int)(blockIdx.x - t.first);
		row = chunk / across;
		from = chunk % across * span;
		end = from + min((int)t.cols - from, span);
	}
	// The rest of a chunk.
	__device__ Chunk(const Chunk &c, int done) : row(c.row), from(c.from + done), end(c.end) {}
};

// scale_index returns the index of an element's scale in a state.
__device__ inline i64 scale_index(const AdamState &s, int cols, int row, int col) {
	const int block = (int)s.block;
	return block ? offset(row, (cols - 1) / block + 1, col / block) : 0;
}

// Expansion is s, k and c of a block of an expanded state: value = sign(code) · (|code|·s)^(1/k) · c.
// Powers are in FP64, whose error the cast hides.
struct Expansion {
	double log_s, k, log_c;

	__device__ Expansion(const float *e) : log_s(log2((double)e[0])), k(e[1]), log_c(log2((double)e[2])) {}
	// Of the largest and the smallest magnitude of a block other than 0.
	__device__ Expansion(i64 format, float highest, float lowest, float *e) : log_s(0), k(1), log_c(0) {
		const double limit = largest_of(format), top = log2((double)highest), span = top - log2((double)lowest);
		e[0] = e[1] = e[2] = 1.0f;
		if (highest == 0.0f)
			return;
		if (span > 0)
			k = fmin(fmax(floor(16 * log2(limit * limit / 2) / span) / 16, 1.0 / 16), 16.0);
		e[1] = (float)k;
		e[2] = (float)sqrt((double)highest * lowest);
		log_c = log2((double)e[2]);
		e[0] = (float)(exp2(k * (top - log_c)) / limit);
		log_s = log2((double)e[0]);
	}
	__device__ float decode(float code) const {
		return code == 0.0f ? code : copysignf((float)exp2((log2((double)fabsf(code)) + log_s) / k + log_c), code);
	}
	__device__ float encode(float x) const {
		return x == 0.0f || !finite(x) ? x : copysignf((float)exp2(k * (log2((double)fabsf(x)) - log_c) - log_s), x);
	}
};

// load_entry copies a tensor's entry of the table to shared memory: the compiler cannot
// exclude that the kernel's stores change the table.
__device__ inline void load_entry(Adam &t, const Adam *from) {
	if (threadIdx.x < sizeof t / 8)
		((u64 *)&t)[threadIdx.x] = ((const u64 *)from)[threadIdx.x];
	__syncthreads();
}

// each_run calls f(col, n) for a thread's elements of a chunk, at most 8 at a time, all
// with the same scales.
template <class F> __device__ inline void each_run(const Adam &t, const Chunk &c, const F &f) {
	for (int base = c.from + threadIdx.x * 8; base < c.end; base += FLAT_THREADS * 8)
		for (int col = base; col < min(base + 8, c.end);) {
			int n = min(8, c.end - base) - (col - base);
#pragma unroll
			for (int k = 1; k < 3; k++)
				if (const int block = (int)t.state[k].block)
					n = min(n, block - col % block);
			f(col, n);
			col += n;
		}
}

// directions computes m / (√v · root_scale + ε) of eight elements, each operation rounded
// to nearest. CUDA's square root and division check the range of each operand; here one
// check covers all eight. In range, these are CUDA's own instructions: m between 2^-90
// and 2^60, and v between 2^-100 and 2^20, exclude overflow; only remainders can be
// denormal, and those are exact.
__device__ inline void directions(const Rule &r, const float m[8], const float v[8], float d[8]) {
#ifdef __CUDA_ARCH__
	u32 far_m = 0, far_v = 0; // distances above the minimum, as unsigned bits; m's without its sign
#pragma unroll
	for (int i = 0; i < 8; i += 2) {
		far_m = max(max(far_m, 2 * __float_as_uint(m[i]) - (37u << 24)), 2 * __float_as_uint(m[i + 1]) - (37u << 24));
		far_v = max(max(far_v, __float_as_uint(v[i]) - (27u << 23)), __float_as_uint(v[i + 1]) - (27u << 23));
	}
	if (r.mild && far_m < 150u << 24 && far_v < 120u << 23) {
#pragma unroll
		for (int i = 0; i < 8; i++) {
			float y, z;
			asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(v[i]));
			const float s = __fmul_rn(v[i], y);
			const float root = __fmaf_rn(__fmaf_rn(-s, s, v[i]), __fmul_rn(y, 0.5f), s);
			const float by = __fadd_rn(__fmul_rn(root, r.root_scale), r.epsilon);
			asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(z) : "f"(by));
			z = __fmaf_rn(z, __fmaf_rn(-by, z, 1.0f), z);
			const float q = __fmul_rn(m[i], z);
			d[i] = __fmaf_rn(z, __fmaf_rn(-by, q, m[i]), q);
		}
		return;
	}
#endif
#pragma unroll
	for (int i = 0; i < 8; i++)
		d[i] = __fdiv_rn(m[i], __fadd_rn(__fmul_rn(__fsqrt_rn(v[i]), r.root_scale), r.epsilon));
}

// Elements is the stored bits of up to eight elements.
struct Elements {
	Eight grad, state[3];
};

// update computes the new values; scale dequantizes the states that have one. Two kernels
// visit each element and must get the same bits, so no operation may be fused. It adds to zeros
// the elements whose old v is 0 while m is not.
__device__ inline void update(const Adam &t, const Rule &r, const Elements &e, const float scale[3], float x[3][8],
			      const float *const expansion[3] = nullptr, float *gradient = nullptr, u32 *zeros = nullptr) {
	float g[8], direction[8];
	const float grad_scale = t.grad_scale ? __ldg(t.grad_scale) : 1.0f;
	decode8((int)t.grad_format, e.grad, g);
#pragma unroll
	for (int k = 0; k < 3; k++) {
		decode8((int)t.state[k].format, e.state[k], x[k]);
		if (k > 0 && expansion && expansion[k]) {
			const Expansion by(expansion[k]);
			for (int i = 0; i < 8; i++)
				x[k][i] = by.decode(x[k][i]);
			continue;
		}
#pragma unroll
		for (int i = 0; i < 8; i++)
			x[k][i] = __fmul_rn(x[k][i], scale[k]);
	}
#pragma unroll
	for (int i = 0; i < 8; i++) {
		float scaled = __fmul_rn(__fmul_rn(g[i], grad_scale), r.coef);
		if (r.l2 != 0.0f) // else -0 stays
			scaled = __fadd_rn(scaled, __fmul_rn(r.l2, x[0][i]));
		if (gradient)
			gradient[i] = scaled;
		if (zeros)
			*zeros += x[2][i] == 0.0f && x[1][i] != 0.0f;
		x[1][i] = __fadd_rn(__fmul_rn(r.beta1, x[1][i]), __fmul_rn(r.rest1, scaled));
		x[2][i] = __fadd_rn(__fmul_rn(r.beta2, x[2][i]), __fmul_rn(r.rest2, __fmul_rn(scaled, scaled)));
	}
	directions(r, x[1], x[2], direction);
#pragma unroll
	for (int i = 0; i < 8; i++)
		x[0][i] = __fsub_rn(__fmul_rn(x[0][i], r.decay), __fmul_rn(r.rate, direction[i]));
}

// update of n elements from col loads them first. The kernel writes the states, so they
// must not use the read-only path.
__device__ inline void update(const Adam &t, const Rule &r, int row, int col, int n, float x[3][8], float *gradient = nullptr, u32 *zeros = nullptr) {
	Elements e;
	float scale[3];
	const float *expansion[3];
	e.grad = fetch8<true>(t.grad, offset(row, t.ld, col), size_of((int)t.grad_format), n);
#pragma unroll
	for (int k = 0; k < 3; k++) {
		const AdamState &s = t.state[k];
		const i64 at = scale_index(s, (int)t.cols, row, col);
		e.state[k] = fetch8<false>(s.p, offset(row, t.cols, col), size_of((int)s.format), n);
		scale[k] = s.scale_inv && !s.expand ? s.scale_inv[at] : 1.0f;
		expansion[k] = s.expand ? s.scale_inv + 3 * at : nullptr;
	}
	update(t, r, e, scale, x, expansion, gradient, zeros);
}

// Quick is a chunk in aligned vectors of eight, each state with at most one scale: the
// common case.
struct Quick {
	const u8 *grad;
	u8 *p[3];
	float scale[3];
	bool sound;

	__device__ Quick(const Adam &t, const Chunk &c) {
		const int grad_size = size_of((int)t.grad_format);
		grad = (const u8 *)t.grad + offset(c.row, t.ld, c.from) * grad_size;
		sound = aligned(grad, min(8 * grad_size, 16));
#pragma unroll
		for (int k = 0; k < 3; k++) {
			const AdamState &s = t.state[k];
			const int size = size_of((int)s.format);
			p[k] = (u8 *)s.p + offset(c.row, t.cols, c.from) * size;
			scale[k] = s.scale_inv && !s.block ? *s.scale_inv : 1.0f;
			sound = sound && !s.block && aligned(p[k], min(8 * size, 16));
		}
	}
	__device__ void update(const Adam &t, const Rule &r, int at, float x[3][8]) const {
		Elements e;
		const int grad_size = size_of((int)t.grad_format);
		e.grad = vector8<true>(grad + (u32)at * grad_size, grad_size);
#pragma unroll
		for (int k = 0; k < 3; k++) {
			const int size = size_of((int)t.state[k].format);
			e.state[k] = vector8<false>(p[k] + (u32)at * size, size);
		}
		::update(t, r, e, scale, x);
	}
};

__device__ inline bool one_scale(const AdamState &s) { return s.scale_inv && !s.block; }

// scale_of returns the scale for new values with this amax. An amax without information
// keeps the old scale, marked by a negative sign; a tensor that was never written has
// scale 0, and gets 1.
__device__ inline float scale_of(const AdamState &s, float amax, float old, bool pow2) {
	const Scale fresh = scale_for(amax, largest_of(s.format), pow2);
	return fresh.ok || old == 0.0f ? fresh.scale : -__fdiv_rn(1.0f, old);
}

// Blocks is the scales of the blocks of a chunk, for the moments that have block scales.
struct Blocks {
	float scale[2][ADAM_BLOCKS];        // amaxes, then scales, as scale_of returns them
	u32 lowest[2][ADAM_BLOCKS];         // inverted bits of the smallest magnitude other than 0
	float expansion[2][ADAM_BLOCKS][3]; // of expanded moments

	// find computes the scales from a chunk's new values.
	__device__ void find(const Adam &t, const Rule &r, const Chunk &c, bool pow2) {
		for (int i = threadIdx.x; i < ADAM_BLOCKS; i += FLAT_THREADS)
			scale[0][i] = scale[1][i] = 0.0f, lowest[0][i] = lowest[1][i] = 0;
		__syncthreads();
		each_run(t, c, [&](int col, int n) {
			float x[3][8];
			update(t, r, c.row, col, n, x);
#pragma unroll
			for (int k = 1; k < 3; k++)
				if (t.state[k].block)
					fold(t.state[k], k - 1, (col - c.from) / (int)t.state[k].block, n, x[k]);
		});
		__syncthreads();
#pragma unroll
		for (int k = 1; k < 3; k++)
			each(t, c, k, [&](i64 i, float *stored) {
				if (t.state[k].expand)
					expand(t.state[k], k - 1, i, stored);
				else
					scale[k - 1][i] = scale_of(t.state[k], scale[k - 1][i], *stored, pow2);
			});
	}
	// write stores the scales, after all old codes are decoded.
	__device__ void write(const Adam &t, const Chunk &c) const {
#pragma unroll
		for (int k = 1; k < 3; k++)
			each(t, c, k, [&](i64 i, float *stored) {
				if (t.state[k].expand)
					for (int j = 0; j < 3; j++)
						stored[j] = expansion[k - 1][i][j];
				else if (scale[k - 1][i] > 0.0f)
					*stored = __fdiv_rn(1.0f, scale[k - 1][i]);
			});
	}
	// prepare returns the factor of up to eight values of state k before the cast. It replaces
	// values of an expanded state.
	__device__ float prepare(const AdamState &s, int k, i64 offset, int n, float x[8]) const {
		const int moment = k > 0 ? k - 1 : 0;
		if (!s.expand)
			return fabsf(scale[moment][offset / s.block]);
		const Expansion e(expansion[moment][offset / s.block]);
		for (int i = 0; i < 8; i++)
			x[i] = i < n ? e.encode(x[i]) : 0.0f;
		return 1.0f;
	}

private:
	__device__ void fold(const AdamState &s, int moment, i64 block, int n, const float x[8]) {
		u32 top = 0, bottom = ~0u;
#pragma unroll
		for (int i = 0; i < 8; i++) {
			const u32 m = magnitude(x[i]);
			top = i < n ? max(top, m) : top;
			bottom = i < n && m > 0 ? min(bottom, m) : bottom;
		}
		fold_amax(&scale[moment][block], top);
		if (s.expand)
			atomicMax(&lowest[moment][block], ~bottom);
	}
	// expand keeps the old expansion of a block that is not finite.
	__device__ void expand(const AdamState &s, int moment, i64 i, const float *old) {
		float *e = expansion[moment][i];
		if (finite(scale[moment][i]))
			Expansion(s.format, scale[moment][i], __uint_as_float(~lowest[moment][i]), e);
		else
			e[0] = old[0], e[1] = old[1], e[2] = old[2];
	}
	// each calls f for a thread's blocks of a chunk of state k, with their stored scales.
	template <class F> __device__ static void each(const Adam &t, const Chunk &c, int k, const F &f) {
		const AdamState &s = t.state[k];
		if (!s.block)
			return;
		const i64 first = scale_index(s, t.cols, c.row, c.from), size = s.expand ? 3 : 1;
		for (i64 i = threadIdx.x; i * s.block < c.end - c.from; i += FLAT_THREADS)
			f(i, s.scale_inv + (first + i) * size);
	}
};
