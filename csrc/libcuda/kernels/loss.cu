// cross_entropy, cross_entropy_parts, softmax_stats: a block of LOSS_THREADS per token. sum: one
// block.
#include "formats.cuh"

const int LOSS_THREADS = 512;

struct CrossEntropyArgs {
	Tensor logits, targets, control, loss_scale, weights, stats, loss, dlogits, correct;
	i64 rows, cols, valid;
	Group split;
	void *scratch;

	// inv_tokens returns what the gradient of a row is multiplied by.
	__device__ float inv_tokens(i64 row) const {
		const float all = control_inv_tokens(control.i32()) * (loss_scale.p ? *loss_scale.f32() : 1.0f);
		return weights.p ? all * weights.f32()[row] : all;
	}
};

// Softmax is the maximum of a thread's columns so far, and the sum of exponentials
// relative to it.
struct Softmax {
	float top, sum;

	// add adds the first n of eight columns. A new maximum rescales the sum.
	__device__ void add(const float v[8], int n) {
		float highest = top, part = 0.0f;
#pragma unroll
		for (int i = 0; i < 8; i++)
			highest = i < n ? fmaxf(highest, v[i]) : highest;
		if (highest > top)
			sum *= expf(top - highest), top = highest;
		const float base = highest == -__uint_as_float(0x7f800000u) ? 0.0f : highest; // all are masked so far
#pragma unroll
		for (int i = 0; i < 8; i++)
			part += i < n ? expf(v[i] - base) : 0.0f;
		sum += part;
	}
};

// store_gradient writes a row of dlogits; target and valid count from its first column. A row that
// is not sound has grad_scale in its valid columns. Eight valid columns without the target, the
// common case, take a path without checks.
__device__ inline void store_gradient(const CrossEntropyArgs &a, i64 row, int target, i64 valid, bool sound, float top, float grad_scale, float inv_tokens) {
	for (i64 col = threadIdx.x * 8; col < a.cols; col += LOSS_THREADS * 8) {
		float v[8];
		const int n = (int)min(8ll, a.cols - col);
		if (sound)
			load8(a.logits, row, col, n, v);
		if (sound && col + 8 <= valid && (u32)(target - (int)col) >= 8) {
#pragma unroll
			for (int i = 0; i < 8; i++)
				v[i] = expf(v[i] - top) * grad_scale;
		} else {
#pragma unroll
			for (int i = 0; i < 8; i++) {
				v[i] = sound ? expf(v[i] - top) * grad_scale : grad_scale;
				if (sound && col + i == target)
					v[i] -= inv_tokens;
				if (col + i >= valid)
					v[i] = 0.0f;
			}
		}
		u32 words[8];
		encode8(a.dlogits.format, v, false, nullptr, words);
		store8(a.dlogits.p, row * a.dlogits.ld + col, size_of(a.dlogits.format), n, words);
	}
}

// cross_entropy reads a row twice: once for maximum and sum, once for the gradient. A
// target outside the vocabulary makes both NaN.
KERNEL(cross_entropy, CrossEntropyArgs, LOSS_THREADS, 1) {
	const i64 row = blockIdx.x;
	const int target = a.targets.i32()[row];
	const float infinity = __uint_as_float(0x7f800000u), nan = __uint_as_float(0x7fc00000u);
	const float inv_tokens = a.inv_tokens(row);
	float loss = target < 0 ? 0.0f : nan, grad_scale = loss, top = -infinity;
	const bool sound = target >= 0 && target < a.valid; // uniform in the block
	int beaten = 0;                                     // a logit precedes the target's in order of size
	if (sound) {
		const float goal = load_value(a.logits, row, target);
		Softmax x = {-infinity, 0.0f};
		for (i64 col = threadIdx.x * 8; col < a.valid; col += LOSS_THREADS * 8) {
			float v[8];
			const int n = (int)min(8ll, a.valid - col);
			load8(a.logits, row, col, n, v);
			if (n == 8)
				x.add(v, 8);
			else
				x.add(v, n);
			if (a.correct.p) {
#pragma unroll
				for (int i = 0; i < 8; i++)
					beaten |= i < n && (v[i] > goal || (v[i] == goal && col + i < target));
			}
		}
		top = over_block<Max, float>(x.top, -infinity);
		// A thread without columns has no sum to scale.
		const double total = block_sum(x.sum == 0.0f ? 0.0 : (double)x.sum * (double)expf(x.top - top));
		loss = (float)((double)top - (double)goal + log(total));
		grad_scale = (float)((double)inv_tokens / total);
	}
	if (a.correct.p)
		beaten = __syncthreads_or(beaten);
	if (threadIdx.x == 0) {
		a.loss.out()[row] = loss;
		if (a.correct.p)
			((int *)a.correct.p)[row] = sound && !beaten && loss == loss;
	}
	if (a.dlogits.p)
		store_gradient(a, row, target, a.valid, sound, top, grad_scale, inv_tokens);
}

// The words of a row of stats, as in package backend.
// The lowest float stands for what a part does not have.
const float LOWEST = -3.402823466e38f;
enum { STATS_TOP, STATS_SUM, STATS_TARGET, STATS_FIRST, STATS_WORDS };

struct SoftmaxStatsArgs {
	Tensor logits, targets, control, out;
	i64 rows, cols, valid;
	Group split;
	void *scratch;
};

// softmax_stats reads a row once, a thread its columns in ascending order.
KERNEL(softmax_stats, SoftmaxStatsArgs, LOSS_THREADS, 1) {
	const i64 row = blockIdx.x;
	const float infinity = __uint_as_float(0x7f800000u);
	const Vocabulary part(a.split, a.control.i32(), a.cols);
	const i64 valid = part.valid(a.valid);
	Softmax x = {-infinity, 0.0f};
	u32 first = 0; // column of the thread's largest logit
	for (i64 col = threadIdx.x * 8; col < valid; col += LOSS_THREADS * 8) {
		float v[8];
		const int n = (int)min(8ll, valid - col);
		const float before = x.top;
		load8(a.logits, row, col, n, v);
		if (n == 8)
			x.add(v, 8);
		else
			x.add(v, n);
		if (x.top > before)
#pragma unroll
			for (int i = 7; i >= 0; i--)
				first = i < n && v[i] == x.top ? (u32)col + i : first;
	}
	const float top = over_block<Max, float>(x.top, -infinity);
	const double sum = block_sum(x.sum == 0.0f ? 0.0 : (double)x.sum * (double)expf(x.top - top));
	first = ~block_max(x.top == top ? ~first : 0u); // the smallest
	if (threadIdx.x > 0)
		return;
	const i64 target = a.targets.i32()[row] - part.first;
	float *out = a.out.out() + row * STATS_WORDS;
	out[STATS_TOP] = fmaxf(top, LOWEST), out[STATS_SUM] = (float)sum, out[STATS_FIRST] = (float)(part.first + first);
	out[STATS_TARGET] = target >= 0 && target < valid ? load_value(a.logits, row, target) : LOWEST;
}

// cross_entropy_parts joins the stats of all parts of the vocabulary, and reads a row once, for the
// gradient. A part without valid columns has the sum 0.
KERNEL(cross_entropy_parts, CrossEntropyArgs, LOSS_THREADS, 1) {
	const i64 row = blockIdx.x;
	const int target = a.targets.i32()[row];
	const float infinity = __uint_as_float(0x7f800000u), nan = __uint_as_float(0x7fc00000u);
	const Vocabulary part(a.split, a.control.i32(), a.cols);
	const float inv_tokens = a.inv_tokens(row), *const stats = a.stats.f32() + row * STATS_WORDS;
	float loss = target < 0 ? 0.0f : nan, grad_scale = loss, top = -infinity, first = -1.0f;
	const bool sound = target >= 0 && target < a.valid; // uniform in the block
	if (sound) {
		const i64 words = a.split.size * a.rows * STATS_WORDS, step = a.rows * STATS_WORDS;
		float goal = -infinity;
		for (i64 at = 0; at < words; at += step) {
			if (stats[at + STATS_TOP] > top)
				top = stats[at + STATS_TOP], first = stats[at + STATS_FIRST];
			goal = fmaxf(goal, stats[at + STATS_TARGET]);
		}
		if (goal == LOWEST)
			goal = -infinity; // no part has more, so its part has it
		double total = 0;
		for (i64 at = 0; at < words; at += step)
			if (stats[at + STATS_SUM] != 0.0f)
				total += (double)stats[at + STATS_SUM] * (double)expf(stats[at + STATS_TOP] - top);
		loss = (float)((double)top - (double)goal + log(total));
		grad_scale = (float)((double)inv_tokens / total);
	}
	if (threadIdx.x == 0) {
		a.loss.out()[row] = loss;
		if (a.correct.p)
			((int *)a.correct.p)[row] = sound && first == (float)target && loss == loss;
	}
	if (a.dlogits.p)
		store_gradient(a, row, (int)(target - part.first), part.valid(a.valid), sound, top, grad_scale, inv_tokens);
}

struct SumArgs {
	Tensor x, out;
	i64 rows, cols, accumulate;
	void *scratch;
};

KERNEL(sum, SumArgs, ONE_THREADS, 1) {
	double total = 0;
	for (i64 i = threadIdx.x; i < a.cols; i += ONE_THREADS)
		total += (double)a.x.f32()[i];
	total = block_sum(total);
	if (threadIdx.x == 0)
		*a.out.out() = (float)(total + (a.accumulate ? (double)*a.out.f32() : 0.0));
}
