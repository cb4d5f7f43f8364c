// sum_squares runs over a table of tensors, split into chunks, one per block (tables.go builds
// the table). step_gate: one block.
#include "formats.cuh"

const int SQUARE_ELEMS = 16384;

struct Square {
	const void *x;
	const float *scale_inv; // null is 1
	i64 format, ld, rows, cols, first;
};

struct SumSquaresArgs {
	const Square *list;
	i64 n, chunks;
	Tensor out;
	i64 inverse_norm;
	double *scratch; // the sum of each chunk
};

// Eight squares are added in FP32, everything else in float64.
KERNEL(sum_squares, SumSquaresArgs, FLAT_THREADS, 1) {
	const Square &s = a.list[index_of(a.list, a.n, blockIdx.x)];
	const i64 across = (s.cols + SQUARE_ELEMS - 1) / SQUARE_ELEMS, chunk = blockIdx.x - s.first;
	const i64 row = chunk / across, from = chunk % across * SQUARE_ELEMS, end = min(s.cols, from + SQUARE_ELEMS);
	const float scale = s.scale_inv ? *s.scale_inv : 1.0f;
	double sum = 0;
#pragma unroll 2
	for (i64 col = from + threadIdx.x * 8; col < end; col += FLAT_THREADS * 8) {
		float v[8], squares = 0.0f;
		decode8((int)s.format, fetch8<true>(s.x, row * s.ld + col, size_of((int)s.format), (int)min(8ll, end - col)), v);
#pragma unroll
		for (int i = 0; i < 8; i++) {
			v[i] = __fmul_rn(v[i], scale);
			squares += v[i] * v[i];
		}
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
		*a.out.out() = (float)(a.inverse_norm ? sum == 0 ? 1.0 : 1 / sqrt(sum) : sum);
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
