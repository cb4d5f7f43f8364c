// update_scale, step_mu, push_history: a thread per record. magnitudes: a thread per element.
// smooth_scale: one block for all channels.
#include "smooth.cuh"

// window_max returns the largest magnitude in a column of a few rows.
__device__ inline u32 window_max(const Tensor &t, i64 rows, i64 col) {
	u32 top = 0;
	for (i64 i = 0; i < rows; i++)
		top = max(top, magnitude(t.f32()[i * t.ld + col]));
	return top;
}

struct UpdateScaleArgs {
	Tensor history, skip, factor, seen, scale, scale_inv;
	i64 rows, cols;
	f64 limit;
	i64 pow2, keep, outer, fixed;
	void *scratch;
};

// outer_scale is fp8.OuterScale.
__device__ inline float outer_scale(float amax, float limit) {
	const float s = fminf(__fdiv_rn(limit, amax), 0x1.fffffep127f);
	if (!finite(amax))
		return __uint_as_float(0x7fc00000u);
	return amax == 0.0f || s == 0.0f ? 1.0f : s;
}

KERNEL(update_scale, UpdateScaleArgs, FLAT_THREADS, 1) {
	const i64 i = (i64)blockIdx.x * FLAT_THREADS + threadIdx.x;
	if (i >= a.cols)
		return;
	const u32 top = window_max(a.history, a.rows, i);
	if (a.seen.p) {
		float *seen = a.seen.out() + i;
		*seen = __uint_as_float(max(magnitude(*seen), top));
	}
	if (a.skip.p && *a.skip.i32())
		return;
	const float amax = __uint_as_float(top);
	Scale s = scale_for(amax, (float)a.limit, a.pow2);
	if (a.outer)
		s.scale = outer_scale(amax, (float)a.limit);
	if (a.fixed && finite(amax)) {
		s.scale = (float)a.limit;
		s.ok = true;
	}
	if (a.factor.p && s.ok) { // fp8.Factored
		const float f = a.factor.f32()[i];
		s.scale = __fmul_rn(s.scale, a.pow2 ? __uint_as_float(__float_as_uint(f) & 0x7f800000u) : f);
		s.scale = fminf(fmaxf(s.scale, 0x1p-126f), 0x1p126f);
	}
	if (s.ok || !a.keep) {
		a.scale.out()[i] = s.scale;
		a.scale_inv.out()[i] = finite(amax) ? __fdiv_rn(1.0f, s.scale) : __uint_as_float(0x7fc00000u);
	}
}

struct StepMuArgs {
	Tensor at_max, skip, mu;
	i64 rows, cols;
	f64 limit;
	void *scratch;
};

KERNEL(step_mu, StepMuArgs, FLAT_THREADS, 1) {
	const i64 i = (i64)blockIdx.x * FLAT_THREADS + threadIdx.x;
	if (i >= a.cols || (a.skip.p && *a.skip.i32()))
		return;
	float *mu = a.mu.out() + i;
	const bool halves = a.at_max.f32()[i] > (float)a.limit;
	*mu = halves ? fmaxf(*mu / 2, 0x1p-126f) : fminf(__fmul_rn(*mu, 0x1.002d72p+0f), 1.0f); // backend.MuGrowth
}

struct PushHistoryArgs {
	Tensor value, skip, history;
	i64 rows, cols;
	void *scratch;
};

KERNEL(push_history, PushHistoryArgs, FLAT_THREADS, 1) {
	const i64 i = (i64)blockIdx.x * FLAT_THREADS + threadIdx.x;
	if (i >= a.cols || (a.skip.p && *a.skip.i32()))
		return;
	float *history = a.history.out() + i;
	for (i64 row = a.rows - 1; row > 0; row--)
		history[row * a.history.ld] = history[(row - 1) * a.history.ld];
	*history = a.value.f32()[i];
}

struct MagnitudesArgs {
	Tensor x;
	i64 rows, cols, reduce;
	Group group;
	void *scratch;
};

KERNEL(magnitudes, MagnitudesArgs, FLAT_THREADS, 1) {
	const i64 i = (i64)blockIdx.x * FLAT_THREADS + threadIdx.x;
	if (i < a.rows * a.cols)
		a.x.out()[i] = __uint_as_float(magnitude(a.x.f32()[i]));
}

struct SmoothScaleArgs {
	Tensor smooth_max, channel_max, weight_max, h_amax, w_amax, c, inv_c;
	Tensor h_scale, h_scale_inv, w_scale, w_scale_inv;
	i64 rows, cols, channel_rows;
	i64 balanced, exact, margin;
	f64 h_limit, w_limit;
	i64 h_pow2, w_pow2;
	void *scratch;
};

// record folds an amax into the step's record and computes the next scale.
__device__ inline void record(u32 top, const Tensor &amax, const Tensor &scale, const Tensor &inv, f64 limit, bool pow2) {
	if (amax.p)
		*amax.out() = __uint_as_float(max(magnitude(*amax.f32()), top));
	if (scale.p) {
		const float s = scale_for(__uint_as_float(top), (float)limit, pow2).scale;
		*scale.out() = s;
		*inv.out() = __fdiv_rn(1.0f, s);
	}
}

KERNEL(smooth_scale, SmoothScaleArgs, ONE_THREADS, 1) {
	u32 h = 0, w = 0;
	for (i64 i = threadIdx.x; i < a.cols; i += ONE_THREADS) {
		const float k = a.weight_max.f32()[i];
		const float m = __uint_as_float(window_max(a.channel_max, a.channel_rows, i));
		const float f = a.smooth_max.p == a.channel_max.p && a.rows == a.channel_rows ? m : __uint_as_float(window_max(a.smooth_max, a.rows, i));
		double q = f;
		if (a.balanced)
			q = sqrt(q / (double)k); // 0, infinite or NaN if either is 0 or not finite
		const float c = smoothing_scale(q, (int)a.margin, a.exact), inv = __fdiv_rn(1.0f, c);
		a.c.out()[i] = c;
		a.inv_c.out()[i] = inv;
		h = max(h, magnitude(__fmul_rn(m, inv)));
		w = max(w, magnitude(__fmul_rn(k, c)));
	}
	h = block_max(h), w = block_max(w);
	if (threadIdx.x == 0) {
		record(h, a.h_amax, a.h_scale, a.h_scale_inv, a.h_limit, a.h_pow2);
		record(w, a.w_amax, a.w_scale, a.w_scale_inv, a.w_limit, a.w_pow2);
	}
}
