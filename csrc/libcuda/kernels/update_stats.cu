#include "adamw.cuh"

struct UpdateStatsArgs {
	const Adam *list;
	i64 n, chunks;
	Tensor step, coef, skip, mean_squares, largest, zero_v;
	f64 beta1, beta2, eps, l2;
	i64 eps_form, parts;
	Rule *scratch; // then the sum, the largest update and the number of zero_v of each chunk

	__device__ double *sums() const { return (double *)(scratch + 1); }
	__device__ u32 *tops() const { return (u32 *)(sums() + chunks); }
	__device__ u32 *zeros() const { return tops() + chunks; }
};

KERNEL(update_stats_begin, UpdateStatsArgs, ONE_THREADS, 1) {
	if (threadIdx.x == 0)
		*a.scratch = rule_of(a, 1.0, 0.0);
}

KERNEL(update_stats, UpdateStatsArgs, FLAT_THREADS, 1) {
	__shared__ Adam t;
	load_entry(t, a.list + index_of(a.list, a.n, blockIdx.x));
	const Rule r = *a.scratch;
	const Chunk c(t);
	const double correction2 = 1 - pow(a.beta2, (double)*a.step.i32()), least = a.eps * a.eps;
	double sum = 0;
	u32 top = 0, zeros = 0;
	each_run(t, c, [&](int col, int n) {
		float x[3][8], g[8], direction[8];
		update(t, r, c.row, col, n, x, g, &zeros);
		directions(r, x[1], x[2], direction);
		for (int i = 0; i < n; i++) {
			const double v = x[2][i] / correction2;
			sum += (double)g[i] * g[i] / (v < least ? least : v); // NaN stays
			top = max(top, magnitude(__fmul_rn(r.rate, direction[i])));
		}
	});
	sum = block_sum(sum);
	top = block_max(top);
	const double zero = block_sum((double)zeros); // exact
	if (threadIdx.x == 0)
		a.sums()[blockIdx.x] = sum, a.tops()[blockIdx.x] = top, a.zeros()[blockIdx.x] = (u32)zero;
}

// update_stats_end adds the chunks of a tensor in their order; a thread has a tensor.
KERNEL(update_stats_end, UpdateStatsArgs, FLAT_THREADS, 1) {
	const i64 i = (i64)blockIdx.x * FLAT_THREADS + threadIdx.x;
	if (i >= a.n)
		return;
	const Adam &t = a.list[i];
	double sum = 0;
	u32 top = 0;
	i64 zeros = 0;
	const i64 end = i + 1 < a.n ? a.list[i + 1].first : a.chunks;
	for (i64 chunk = t.first; chunk < end && !*a.skip.i32(); chunk++)
		sum += a.sums()[chunk], top = max(top, a.tops()[chunk]), zeros += a.zeros()[chunk];
	const double whole = (double)(t.rows * t.cols) * a.parts;
	a.mean_squares.out()[i] = (float)(sum / whole);
	a.largest.out()[i] = __uint_as_float(top);
	a.zero_v.out()[i] = (float)((double)zeros / whole);
}
