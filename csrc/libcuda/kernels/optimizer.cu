// sum_squares and adamw run over a table of tensors, split into chunks, one per block
// (tables.go builds the table). step_gate: one block.
#include "formats.cuh"

const int SQUARE_ELEMS = 16384;

// index_of returns the index of a chunk's tensor: the last one whose first chunk is not
// after it.
template <class T> __device__ inline i64 index_of(const T *list, i64 n, i64 chunk) {
	i64 low = 0;
	while (n > 1) {
		const i64 half = n / 2;
		if (list[low + half].first <= chunk)
			low += half, n -= half;
		else
			n = half;
	}
	return low;
}

struct Square {
	const float *x;
	i64 ld, rows, cols, first;
};

struct SumSquaresArgs {
	const Square *list;
	i64 n, chunks;
	Tensor out;
	double *scratch; // the sum of each chunk
};

// Eight squares are added in FP32, everything else in float64.
KERNEL(sum_squares, SumSquaresArgs, FLAT_THREADS, 1) {
	const Square &s = a.list[index_of(a.list, a.n, blockIdx.x)];
	const i64 across = (s.cols + SQUARE_ELEMS - 1) / SQUARE_ELEMS, chunk = blockIdx.x - s.first;
	const i64 row = chunk / across, from = chunk % across * SQUARE_ELEMS, end = min(s.cols, from + SQUARE_ELEMS);
	const Tensor x = {(void *)s.x, s.ld, F32, nullptr};
	double sum = 0;
#pragma unroll 2
	for (i64 col = from + threadIdx.x * 8; col < end; col += FLAT_THREADS * 8) {
		float v[8], squares = 0.0f;
		load8(x, row, col, (int)min(8ll, end - col), v);
#pragma unroll
		for (int i = 0; i < 8; i++)
			squares += v[i] * v[i];
		sum += (double)squares;
	}
	sum = block_sum(sum);
	if (threadIdx.x == 0)
		a.scratch[blockIdx.x] = sum;
}

KERNEL(sum_squares_end, SumSquaresArgs, ONE_THREADS, 1) {
	double sum = 0;
	for (i64 i = threadIdx.x; i < a.chunks; i += ONE_THREADS)
		sum += a.scratch[i];
	sum = block_sum(sum);
	if (threadIdx.x == 0)
		*a.out.out() = (float)sum;
}

struct StepGateArgs {
	Tensor sum_squares, amax, step, grad_norm, coef, skip, loss_scale, good_steps;
	i64 rows, cols;
	f64 clip;
	i64 growth_steps;
	void *scratch;
};

KERNEL(step_gate, StepGateArgs, ONE_THREADS, 1) {
	const float squares = *a.sum_squares.f32();
	int bad = !finite(squares);
	for (i64 i = threadIdx.x; i < a.cols; i += ONE_THREADS)
		bad |= !finite(a.amax.f32()[i]);
	bad = __syncthreads_or(bad);
	if (threadIdx.x == 0) {
		const double scale = a.loss_scale.p ? *a.loss_scale.f32() : 1.0;
		const double norm = sqrt((double)squares) / scale;
		*a.grad_norm.out() = (float)norm;
		const double coef = a.clip > 0 ? a.clip / (norm + 1e-6) : 1.0;
		*a.coef.out() = (float)((coef > 1.0 ? 1.0 : coef) / scale); // NaN stays
		*(int *)a.skip.p = bad != 0;
		if (!bad)
			*(int *)a.step.p += 1;
		if (!a.loss_scale.p)
			return;
		const int good = *a.good_steps.i32() + 1;
		const bool grows = !bad && good == a.growth_steps;
		if (bad)
			*a.loss_scale.out() = fmaxf((float)scale / 2, 0x1p-126f);
		else if (grows)
			*a.loss_scale.out() = fminf((float)scale * 2, 0x1p126f);
		*(int *)a.good_steps.p = bad || grows ? 0 : good;
	}
}

// ---- AdamW ----

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
	const float *grad;
	i64 ld, rows, cols;
	i64 first, span; // the first chunk, and the columns per chunk
	AdamState state[3]; // master, first and second moment
};

// Rule is the arithmetic of one step, which adamw_begin computes in float64.
struct Rule {
	float coef, l2, beta1, rest1, beta2, rest2, decay, rate, root_scale, epsilon;
	int mild; // root_scale and epsilon are in the range of the fast path of directions
};

struct AdamWArgs {
	const Adam *list;
	i64 n, chunks;
	Tensor control, step, coef, skip, amaxes; // [3n]: amaxes, then scales
	f64 beta1, beta2, eps, weight_decay, l2;
	i64 eps_form, rounding, pow2, floor_v, amax_only, amax_given, shard;
	Rule *scratch;
};

// adamw_begin clears the amaxes, unless they are given, and computes the step's rule.
KERNEL(adamw_begin, AdamWArgs, ONE_THREADS, 1) {
	for (i64 i = threadIdx.x; i < 3 * a.n && !a.amax_given; i += ONE_THREADS)
		a.amaxes.out()[i] = 0.0f;
	if (threadIdx.x > 0)
		return;
	// The op's settings are float32; 1−β is the float64 difference, rounded.
	const double t = *a.step.i32(), lr = control_lr(a.control.i32());
	const double correction1 = 1 - pow(a.beta1, t), root2 = sqrt(1 - pow(a.beta2, t));
	Rule r;
	r.coef = *a.coef.f32(), r.l2 = (float)a.l2;
	r.beta1 = (float)a.beta1, r.rest1 = (float)(1 - a.beta1);
	r.beta2 = (float)a.beta2, r.rest2 = (float)(1 - a.beta2);
	r.decay = (float)(1 - lr * a.weight_decay);
	r.epsilon = (float)a.eps;
	r.rate = (float)(a.eps_form ? lr / correction1 : lr * root2 / correction1);
	r.root_scale = a.eps_form ? (float)(1 / root2) : 1.0f;
	r.mild = r.root_scale >= 1.0f && r.root_scale <= 0x1p20f && r.epsilon >= 0.0f && r.epsilon <= 0x1p20f;
	*a.scratch = r;
}

// Chunk is a block's part of a tensor.
struct Chunk {
	i64 row, from, end;

	__device__ Chunk(const Adam &t) {
		const i64 across = (t.cols + t.span - 1) / t.span, chunk = blockIdx.x - t.first;
		row = chunk / across;
		from = chunk % across * t.span;
		end = min(t.cols, from + t.span);
	}
	// The rest of a chunk.
	__device__ Chunk(const Chunk &c, int done) : row(c.row), from(c.from + done), end(c.end) {}
};

// scale_index returns the index of an element's scale in a state.
__device__ inline i64 scale_index(const AdamState &s, i64 cols, i64 row, i64 col) {
	return s.block ? row * ((cols + s.block - 1) / s.block) + col / s.block : 0;
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
	for (i64 base = c.from + threadIdx.x * 8; base < c.end; base += FLAT_THREADS * 8)
		for (i64 col = base; col < min(base + 8, c.end);) {
			i64 n = min(8ll, c.end - base) - (col - base);
#pragma unroll
			for (int k = 1; k < 3; k++)
				if (t.state[k].block)
					n = min(n, t.state[k].block - col % t.state[k].block);
			f(col, (int)n);
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
// visit each element and must get the same bits, so no operation may be fused.
__device__ inline void update(const Adam &t, const Rule &r, const Elements &e, const float scale[3], float x[3][8],
			      const float *const expansion[3] = nullptr) {
	float g[8], direction[8];
	decode8<F32>(e.grad, g);
#pragma unroll
	for (int k = 0; k < 3; k++) {
		decode8((int)t.state[k].format, e.state[k], x[k]);
		if (expansion && expansion[k]) {
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
		float scaled = __fmul_rn(g[i], r.coef);
		if (r.l2 != 0.0f) // else -0 stays
			scaled = __fadd_rn(scaled, __fmul_rn(r.l2, x[0][i]));
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
__device__ inline void update(const Adam &t, const Rule &r, i64 row, i64 col, int n, float x[3][8]) {
	Elements e;
	float scale[3];
	const float *expansion[3];
	e.grad = fetch8<true>(t.grad, row * t.ld + col, 4, n);
#pragma unroll
	for (int k = 0; k < 3; k++) {
		const AdamState &s = t.state[k];
		const i64 at = scale_index(s, t.cols, row, col);
		e.state[k] = fetch8<false>(s.p, row * t.cols + col, size_of((int)s.format), n);
		scale[k] = s.scale_inv && !s.expand ? s.scale_inv[at] : 1.0f;
		expansion[k] = s.expand ? s.scale_inv + 3 * at : nullptr;
	}
	update(t, r, e, scale, x, expansion);
}

// Quick is a chunk in aligned vectors of eight, each state with at most one scale: the
// common case.
struct Quick {
	const float *grad;
	u8 *p[3];
	float scale[3];
	bool sound;

	__device__ Quick(const Adam &t, const Chunk &c) {
		grad = t.grad + c.row * t.ld + c.from;
		sound = aligned(grad, 16);
#pragma unroll
		for (int k = 0; k < 3; k++) {
			const AdamState &s = t.state[k];
			const int size = size_of((int)s.format);
			p[k] = (u8 *)s.p + (c.row * t.cols + c.from) * size;
			scale[k] = s.scale_inv && !s.block ? *s.scale_inv : 1.0f;
			sound = sound && !s.block && aligned(p[k], min(8 * size, 16));
		}
	}
	__device__ void update(const Adam &t, const Rule &r, int at, float x[3][8]) const {
		Elements e;
		e.grad = vector8<true>(grad + at, 4);
#pragma unroll
		for (int k = 0; k < 3; k++) {
			const int size = size_of((int)t.state[k].format);
			e.state[k] = vector8<false>(p[k] + (u32)at * size, size);
		}
		::update(t, r, e, scale, x);
	}
};

__device__ inline bool one_scale(const AdamState &s) { return s.scale_inv && !s.block; }

// adamw_amax computes the amaxes of the states with one scale.
KERNEL(adamw_amax, AdamWArgs, FLAT_THREADS, 3) {
	if (*a.skip.i32())
		return;
	const i64 at = index_of(a.list, a.n, blockIdx.x);
	__shared__ Adam t;
	load_entry(t, a.list + at);
	if (!one_scale(t.state[0]) && !one_scale(t.state[1]) && !one_scale(t.state[2]))
		return;
	const Rule r = *a.scratch;
	const Chunk c(t);
	Peak peak[3];
	const Quick q(t, c);
	const int whole = q.sound ? (int)(c.end - c.from) & ~7 : 0;
	for (int i = threadIdx.x * 8; i < whole; i += FLAT_THREADS * 8) {
		float x[3][8];
		q.update(t, r, i, x);
#pragma unroll
		for (int k = 0; k < 3; k++)
			peak[k].fold(x[k]);
	}
	each_run(t, Chunk(c, whole), [&](i64 col, int n) {
		float x[3][8];
		update(t, r, c.row, col, n, x);
#pragma unroll
		for (int k = 0; k < 3; k++)
#pragma unroll
			for (int i = 0; i < 8; i++)
				peak[k].fold(i < n ? magnitude(x[k][i]) : 0);
	});
#pragma unroll
	for (int k = 0; k < 3; k++) {
		const u32 highest = block_max(peak[k].top());
		if (threadIdx.x == 0 && one_scale(t.state[k]))
			fold_amax(a.amaxes.out() + 3 * at + k, highest);
	}
}

// scale_of returns the scale for new values with this amax. An amax without information
// keeps the old scale, marked by a negative sign; a tensor that was never written has
// scale 0, and gets 1.
__device__ inline float scale_of(const AdamState &s, float amax, float old, bool pow2) {
	const Scale fresh = scale_for(amax, largest_of(s.format), pow2);
	return fresh.ok || old == 0.0f ? fresh.scale : -__fdiv_rn(1.0f, old);
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
	__shared__ float block_scales[2][ADAM_BLOCKS]; // block amaxes of the moments, then scales
	__shared__ u32 block_lowest[2][ADAM_BLOCKS];   // inverted bits of the smallest magnitudes other than 0, of expanded moments
	__shared__ float expansions[2][ADAM_BLOCKS][3];
	if (*a.skip.i32())
		return;
	const i64 at = index_of(a.list, a.n, blockIdx.x);
	__shared__ Adam t;
	load_entry(t, a.list + at);
	const float *scales = a.amaxes.f32() + 3 * at;
	const Rule r = *a.scratch;
	const Chunk c(t);
	if (threadIdx.x < 3)
		key[threadIdx.x] = a.rounding ? stream_key(a.control.i32(), t.state[threadIdx.x].name_key) : 0;
	const u64 first = a.shard ? control_rank(a.control.i32()) * (u64)(t.rows * t.cols) : 0;
	const bool blocks = t.state[1].block || t.state[2].block;
	if (blocks) {
		for (int i = threadIdx.x; i < ADAM_BLOCKS; i += FLAT_THREADS)
			block_scales[0][i] = block_scales[1][i] = 0.0f, block_lowest[0][i] = block_lowest[1][i] = 0;
		__syncthreads();
		each_run(t, c, [&](i64 col, int n) {
			float x[3][8];
			update(t, r, c.row, col, n, x);
#pragma unroll
			for (int k = 1; k < 3; k++) {
				u32 top = 0, bottom = ~0u;
#pragma unroll
				for (int i = 0; i < 8; i++) {
					const u32 m = magnitude(x[k][i]);
					top = i < n ? max(top, m) : top;
					bottom = i < n && m > 0 ? min(bottom, m) : bottom;
				}
				if (!t.state[k].block)
					continue;
				fold_amax(&block_scales[k - 1][(col - c.from) / t.state[k].block], top);
				if (t.state[k].expand)
					atomicMax(&block_lowest[k - 1][(col - c.from) / t.state[k].block], ~bottom);
			}
		});
		__syncthreads();
#pragma unroll
		for (int k = 1; k < 3; k++) {
			const AdamState &s = t.state[k];
			if (!s.block)
				continue;
			for (i64 i = threadIdx.x; i * s.block < c.end - c.from; i += FLAT_THREADS)
				if (s.expand) {
					float *e = expansions[k - 1][i];
					const float highest = block_scales[k - 1][i], *old = s.scale_inv + 3 * (scale_index(s, t.cols, c.row, c.from) + i);
					if (finite(highest))
						Expansion(s.format, highest, __uint_as_float(~block_lowest[k - 1][i]), e);
					else
						e[0] = old[0], e[1] = old[1], e[2] = old[2];
				} else
					block_scales[k - 1][i] = scale_of(s, block_scales[k - 1][i], s.scale_inv[scale_index(s, t.cols, c.row, c.from) + i], a.pow2);
		}
	}
	__syncthreads();
	const Quick q(t, c);
	const u64 start = first + (u64)(c.row * t.cols + c.from);
	const int whole = q.sound && start % 8 == 0 ? (int)(c.end - c.from) & ~7 : 0;
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
	each_run(t, Chunk(c, whole), [&](i64 col, int n) {
		float x[3][8];
		update(t, r, c.row, col, n, x);
		const i64 at = c.row * t.cols + col;
#pragma unroll
		for (int k = 0; k < 3; k++) {
			const AdamState &s = t.state[k];
			const i64 block = s.block ? (col - c.from) / s.block : 0;
			float scale = s.block ? fabsf(block_scales[k > 0 ? k - 1 : 0][block]) : by[k];
			if (s.expand) {
				const Expansion e(expansions[k > 0 ? k - 1 : 0][block]);
				for (int i = 0; i < 8; i++)
					x[k][i] = i < n ? e.encode(x[k][i]) : 0.0f;
				scale = 1.0f;
			}
			u32 w[8], random[4];
			if (a.rounding)
#pragma unroll
				for (int i = 0; i < 8; i += 2)
					random[i / 2] = random_bits(key[k], first + at + i) >> 16 | random_bits(key[k], first + at + i + 1);
			encode(a, s, scale, k == 2 && a.floor_v, random, x[k], w);
			store8(s.p, at, size_of(s.format), n, w);
		}
	});
	if (!blocks)
		return;
	__syncthreads(); // all old codes are decoded with the old scales
#pragma unroll
	for (int k = 1; k < 3; k++) {
		const AdamState &s = t.state[k];
		if (!s.block)
			continue;
		for (i64 i = threadIdx.x; i * s.block < c.end - c.from; i += FLAT_THREADS)
			if (s.expand) {
				float *to = s.scale_inv + 3 * (scale_index(s, t.cols, c.row, c.from) + i);
				for (int j = 0; j < 3; j++)
					to[j] = expansions[k - 1][i][j];
			} else if (block_scales[k - 1][i] > 0.0f)
				s.scale_inv[scale_index(s, t.cols, c.row, c.from) + i] = __fdiv_rn(1.0f, block_scales[k - 1][i]);
	}
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
