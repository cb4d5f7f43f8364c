// sum_squares and adamw work on a table of tensors, cut into chunks that a block
// takes one of (tables.go makes the table). step_gate: one block.
#include "formats.cuh"

const int SQUARE_ELEMS = 16384;

// index_of finds the tensor that a chunk belongs to: the last one whose first
// chunk is not behind it.
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
	Tensor sum_squares, amax, step, grad_norm, coef, skip;
	i64 rows, cols;
	f64 clip;
	void *scratch;
};

KERNEL(step_gate, StepGateArgs, ONE_THREADS, 1) {
	const float squares = *a.sum_squares.f32();
	int bad = !finite(squares);
	for (i64 i = threadIdx.x; i < a.cols; i += ONE_THREADS)
		bad |= !finite(a.amax.f32()[i]);
	bad = __syncthreads_or(bad);
	if (threadIdx.x == 0) {
		const double norm = sqrt((double)squares);
		*a.grad_norm.out() = (float)norm;
		const double coef = a.clip > 0 ? a.clip / (norm + 1e-6) : 1.0;
		*a.coef.out() = coef > 1.0 ? 1.0f : (float)coef; // NaN stays
		*(int *)a.skip.p = bad != 0;
		if (!bad)
			*(int *)a.step.p += 1;
	}
}

// ---- AdamW ----

const int ADAM_SLOTS = 512; // scales by block of one moment in a chunk

struct AdamState {
	void *p;
	float *scale_inv; // null for F32 and BF16
	i64 format;
	i64 block; // elements of a row with one scale; 0: all have one
	u64 name_key;
};

struct Adam {
	const float *grad;
	i64 ld, rows, cols;
	i64 first, span; // the first chunk, and the columns of one
	AdamState state[3]; // master, first and second moment
};

// Rule is the arithmetic of one step, which adamw_begin computes in float64.
struct Rule {
	float coef, beta1, rest1, beta2, rest2, decay, rate, root_factor, epsilon;
};

struct AdamWArgs {
	const Adam *list;
	i64 n, chunks;
	Tensor control, step, coef, skip, amaxes; // [3n]: amaxes, then scales
	f64 beta1, beta2, eps, weight_decay;
	i64 eps_form, rounding, pow2, floor_v, amax_only, amax_given, shard;
	Rule *scratch;
};

// adamw_begin clears the amaxes, unless they are given, and makes the step's rule.
KERNEL(adamw_begin, AdamWArgs, ONE_THREADS, 1) {
	for (i64 i = threadIdx.x; i < 3 * a.n && !a.amax_given; i += ONE_THREADS)
		a.amaxes.out()[i] = 0.0f;
	if (threadIdx.x > 0)
		return;
	// The op's numbers are float32; 1−β is the float64 difference, rounded.
	const double t = *a.step.i32(), lr = control_lr(a.control.i32());
	const double correction1 = 1 - pow(a.beta1, t), root2 = sqrt(1 - pow(a.beta2, t));
	Rule r;
	r.coef = *a.coef.f32();
	r.beta1 = (float)a.beta1, r.rest1 = (float)(1 - a.beta1);
	r.beta2 = (float)a.beta2, r.rest2 = (float)(1 - a.beta2);
	r.decay = (float)(1 - lr * a.weight_decay);
	r.epsilon = (float)a.eps;
	r.rate = (float)(a.eps_form ? lr / correction1 : lr * root2 / correction1);
	r.root_factor = a.eps_form ? (float)(1 / root2) : 1.0f;
	*a.scratch = r;
}

// Chunk is the part of a tensor that a block takes.
struct Chunk {
	i64 row, from, end;

	__device__ Chunk(const Adam &t) {
		const i64 across = (t.cols + t.span - 1) / t.span, chunk = blockIdx.x - t.first;
		row = chunk / across;
		from = chunk % across * t.span;
		end = min(t.cols, from + t.span);
	}
};

// slot is the place of an element's scale among those of its state.
__device__ inline i64 slot(const AdamState &s, i64 cols, i64 row, i64 col) {
	return s.block ? row * ((cols + s.block - 1) / s.block) + col / s.block : 0;
}

// take copies a tensor's entry of the list to where its words are at hand: for all
// the compiler knows, what the kernel stores may change the list.
__device__ inline void take(Adam &t, const Adam *from) {
	if (threadIdx.x < sizeof t / 8)
		((u64 *)&t)[threadIdx.x] = ((const u64 *)from)[threadIdx.x];
	__syncthreads();
}

// each_group calls f(col, n) for the elements of a chunk, at most 8 together: those
// of a thread, or as many of them as have the same scales.
template <class F> __device__ inline void each_group(const Adam &t, const Chunk &c, const F &f) {
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

// update computes the new values of n elements. The two visits of an element
// must get the same bits, in two kernels: so no operation may be fused.
__device__ inline void update(const Adam &t, const Rule &r, i64 row, i64 col, int n, float x[3][8]) {
	const Tensor grad = {(void *)t.grad, t.ld, F32, nullptr};
	Eight codes[3];
	float scale[3], g[8];
	const Eight raw = fetch8(grad, row, col, n);
#pragma unroll
	for (int k = 0; k < 3; k++) {
		const AdamState &s = t.state[k];
		codes[k] = fetch8<false>(s.p, row * t.cols + col, size_of((int)s.format), n); // the kernel writes there, too
		scale[k] = s.scale_inv ? s.scale_inv[slot(s, t.cols, row, col)] : 1.0f;
	}
	values8(grad, raw, g);
#pragma unroll
	for (int k = 0; k < 3; k++) {
		decode8((int)t.state[k].format, codes[k], x[k]);
		if (t.state[k].scale_inv)
#pragma unroll
			for (int i = 0; i < 8; i++)
				x[k][i] = __fmul_rn(x[k][i], scale[k]);
	}
#pragma unroll
	for (int i = 0; i < 8; i++) {
		const float scaled = __fmul_rn(g[i], r.coef);
		const float m = __fadd_rn(__fmul_rn(r.beta1, x[1][i]), __fmul_rn(r.rest1, scaled));
		const float v = __fadd_rn(__fmul_rn(r.beta2, x[2][i]), __fmul_rn(r.rest2, __fmul_rn(scaled, scaled)));
		const float root = __fmul_rn(__fsqrt_rn(v), r.root_factor);
		const float direction = __fdiv_rn(m, __fadd_rn(root, r.epsilon));
		x[0][i] = __fsub_rn(__fmul_rn(x[0][i], r.decay), __fmul_rn(r.rate, direction));
		x[1][i] = m, x[2][i] = v;
	}
}

__device__ inline bool one_scale(const AdamState &s) { return s.scale_inv && !s.block; }

// adamw_amax finds the amaxes of the states with one scale.
KERNEL(adamw_amax, AdamWArgs, FLAT_THREADS, 3) {
	if (*a.skip.i32())
		return;
	const i64 at = index_of(a.list, a.n, blockIdx.x);
	__shared__ Adam t;
	take(t, a.list + at);
	if (!one_scale(t.state[0]) && !one_scale(t.state[1]) && !one_scale(t.state[2]))
		return;
	const Rule r = *a.scratch;
	const Chunk c(t);
	u32 top[3] = {};
	each_group(t, c, [&](i64 col, int n) {
		float x[3][8];
		update(t, r, c.row, col, n, x);
#pragma unroll
		for (int k = 0; k < 3; k++)
			if (n == 8)
				top[k] = top8(top[k], x[k]);
			else
#pragma unroll
				for (int i = 0; i < 8; i++)
					top[k] = max(top[k], i < n ? magnitude(x[k][i]) : 0);
	});
#pragma unroll
	for (int k = 0; k < 3; k++) {
		const u32 most = block_max(top[k]);
		if (threadIdx.x == 0 && one_scale(t.state[k]))
			fold_amax(a.amaxes.out() + 3 * at + k, most);
	}
}

// scale_of is the scale for new values with this amax. One that says nothing
// keeps the old scale, as a negative number; a tensor that nobody has written
// has 0 there, and gets 1.
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

// write8 stores n new values of a state; first is the index of its first element's
// random bits.
__device__ inline void write8(const AdamWArgs &a, const AdamState &s, u64 key, u64 first, i64 at, int n, float scale, bool floor, const float x[8]) {
	float v[8];
#pragma unroll
	for (int i = 0; i < 8; i++)
		v[i] = s.scale_inv ? __fmul_rn(x[i], fabsf(scale)) : x[i];
	u32 w[8], random[4];
	const u64 index = first + (u64)at;
	if (a.rounding && index % 8 == 0) {
		random8(key, index, random);
	} else if (a.rounding) {
#pragma unroll
		for (int i = 0; i < 8; i += 2)
			random[i / 2] = random_bits(key, index + i) >> 16 | random_bits(key, index + i + 1);
	}
	encode8(s.format, v, a.rounding, random, w);
	const int size = size_of(s.format);
	if (floor) {
		// In every format the code of the smallest number is 1.
#pragma unroll
		for (int i = 0; i < 8; i++) {
			if (size == 1 && x[i] > 0.0f && (w[i / 4] >> (i % 4 * 8) & 0xffu) == 0)
				w[i / 4] |= 1u << (i % 4 * 8);
			if (size == 2 && x[i] > 0.0f && (w[i / 2] >> (i % 2 * 16) & 0xffffu) == 0)
				w[i / 2] |= 1u << (i % 2 * 16);
		}
	}
	store8(s.p, at, size, n, w);
}

KERNEL(adamw, AdamWArgs, FLAT_THREADS, 2) {
	__shared__ u64 key[3];
	__shared__ float slots[2][ADAM_SLOTS]; // amaxes by block of the moments, then scales
	if (*a.skip.i32())
		return;
	const i64 at = index_of(a.list, a.n, blockIdx.x);
	__shared__ Adam t;
	take(t, a.list + at);
	const float *scales = a.amaxes.f32() + 3 * at;
	const Rule r = *a.scratch;
	const Chunk c(t);
	if (threadIdx.x < 3)
		key[threadIdx.x] = a.rounding ? stream_key(a.control.i32(), t.state[threadIdx.x].name_key) : 0;
	const u64 first = a.shard ? control_rank(a.control.i32()) * (u64)(t.rows * t.cols) : 0;
	const bool blocks = t.state[1].block || t.state[2].block;
	if (blocks) {
		for (int i = threadIdx.x; i < ADAM_SLOTS; i += FLAT_THREADS)
			slots[0][i] = slots[1][i] = 0.0f;
		__syncthreads();
		each_group(t, c, [&](i64 col, int n) {
			float x[3][8];
			update(t, r, c.row, col, n, x);
#pragma unroll
			for (int k = 1; k < 3; k++) {
				u32 top = 0;
#pragma unroll
				for (int i = 0; i < 8; i++)
					top = i < n ? max(top, magnitude(x[k][i])) : top;
				if (t.state[k].block)
					fold_amax(&slots[k - 1][(col - c.from) / t.state[k].block], top);
			}
		});
		__syncthreads();
#pragma unroll
		for (int k = 1; k < 3; k++) {
			const AdamState &s = t.state[k];
			if (!s.block)
				continue;
			for (i64 i = threadIdx.x; i * s.block < c.end - c.from; i += FLAT_THREADS)
				slots[k - 1][i] = scale_of(s, slots[k - 1][i], s.scale_inv[slot(s, t.cols, c.row, c.from) + i], a.pow2);
		}
	}
	__syncthreads();
	each_group(t, c, [&](i64 col, int n) {
		float x[3][8];
		update(t, r, c.row, col, n, x);
#pragma unroll
		for (int k = 0; k < 3; k++) {
			const AdamState &s = t.state[k];
			const float scale = s.block ? slots[k > 0 ? k - 1 : 0][(col - c.from) / s.block] : scales[k];
			write8(a, s, key[k], first, c.row * t.cols + col, n, scale, k == 2 && a.floor_v, x[k]);
		}
	});
	if (!blocks)
		return;
	__syncthreads(); // all old codes are read by the old scales
#pragma unroll
	for (int k = 1; k < 3; k++) {
		const AdamState &s = t.state[k];
		if (!s.block)
			continue;
		for (i64 i = threadIdx.x; i * s.block < c.end - c.from; i += FLAT_THREADS)
			if (slots[k - 1][i] > 0.0f)
				s.scale_inv[slot(s, t.cols, c.row, c.from) + i] = __fdiv_rn(1.0f, slots[k - 1][i]);
	}
}

// adamw_end records the scales of the codes, once all old ones are read.
KERNEL(adamw_end, AdamWArgs, FLAT_THREADS, 1) {
	const i64 i = (i64)blockIdx.x * FLAT_THREADS + threadIdx.x;
	if (i >= 3 * a.n || *a.skip.i32())
		return;
	const AdamState &s = a.list[i / 3].state[i % 3];
	const float scale = a.amaxes.f32()[i];
	if (one_scale(s) && scale > 0.0f)
		*s.scale_inv = __fdiv_rn(1.0f, scale);
}
