// cross_entropy: a block of LOSS_THREADS per token. sum: one block.
#include "formats.cuh"

const int LOSS_THREADS = 512;

struct CrossEntropyArgs {
	Tensor logits, targets, control, loss_scale, weights, loss, dlogits, correct;
	i64 rows, cols, valid;
	void *scratch;
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

// cross_entropy reads a row twice: once for maximum and sum, once for the gradient. A
// target outside the vocabulary makes both NaN. Eight valid columns without the target,
// the common case, take a path without checks.
KERNEL(cross_entropy, CrossEntropyArgs, LOSS_THREADS, 1) {
	const i64 row = blockIdx.x;
	const int target = a.targets.i32()[row];
	const float infinity = __uint_as_float(0x7f800000u), nan = __uint_as_float(0x7fc00000u);
	float inv_tokens = control_inv_tokens(a.control.i32()) * (a.loss_scale.p ? *a.loss_scale.f32() : 1.0f);
	if (a.weights.p)
		inv_tokens *= a.weights.f32()[row];
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
	if (!a.dlogits.p)
		return;
	for (i64 col = threadIdx.x * 8; col < a.cols; col += LOSS_THREADS * 8) {
		float v[8];
		const int n = (int)min(8ll, a.cols - col);
		if (sound)
			load8(a.logits, row, col, n, v);
		if (sound && col + 8 <= a.valid && (u32)(target - (int)col) >= 8) {
#pragma unroll
			for (int i = 0; i < 8; i++)
				v[i] = expf(v[i] - top) * grad_scale;
		} else {
#pragma unroll
			for (int i = 0; i < 8; i++) {
				v[i] = sound ? expf(v[i] - top) * grad_scale : grad_scale;
				if (sound && col + i == target)
					v[i] -= inv_tokens;
				if (col + i >= a.valid)
					v[i] = 0.0f;
			}
		}
		u32 words[8];
		encode8(a.dlogits.format, v, false, nullptr, words);
		store8(a.dlogits.p, row * a.dlogits.ld + col, size_of(a.dlogits.format), n, words);
	}
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
