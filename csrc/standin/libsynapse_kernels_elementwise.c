//go:build ignore

// Stand-in for libSynapse.so: kernels of the tensor cores that work element by
// element, and reductions. They compute in F32, or in I32 where that is the type.
// Dimensions of size 1 are broadcast.
//
// What a real maximum does with NaN is not published. Here NaN wins, or, if
// STANDIN_NAN is "drop", loses: what matters should not depend on it.

#define _GNU_SOURCE
#include "libsynapse.h"

#pragma GCC optimize("O3")

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1024, MAX_IN = 3 };

// Functions work on runs of n elements.
typedef void floats(float *restrict to, const float *const *in, uint64_t n, bool drop_nan);
typedef void ints(int32_t *restrict to, const int32_t *const *in, uint64_t n);

typedef struct {
	floats *floats;
	ints *ints; // NULL: not for I32
} function;

#define FLOATS(name, ins, value)                                                                        \
	WIDE static void name##_floats(float *restrict to, const float *const *in, uint64_t n, bool drop) {  \
		const float *a_ = in[0], *b_ = in[ins > 1], *c_ = in[ins > 2 ? 2 : 0];                  \
		for (uint64_t i = 0; i < n; i++) {                                                      \
			const float a = a_[i], b __attribute__((unused)) = b_[i], c __attribute__((unused)) = c_[i]; \
			to[i] = value;                                                                  \
		}                                                                                       \
	}
#define INTS(name, ins, value)                                                                          \
	static void name##_ints(int32_t *restrict to, const int32_t *const *in, uint64_t n) {           \
		const int32_t *a_ = in[0], *b_ = in[ins > 1], *c_ = in[ins > 2 ? 2 : 0];                \
		for (uint64_t i = 0; i < n; i++) {                                                      \
			const int32_t a = a_[i], b __attribute__((unused)) = b_[i], c __attribute__((unused)) = c_[i]; \
			to[i] = value;                                                                  \
		}                                                                                       \
	}
#define FLOAT_FUNCTION(name, ins, value) \
	FLOATS(name, ins, value)         \
	static const function name = {name##_floats, NULL};
#define FUNCTION(name, ins, value)      \
	FLOATS(name, ins, value)        \
	INTS(name, ins, value)          \
	static const function name = {name##_floats, name##_ints};

FUNCTION(add, 2, a + b)
FUNCTION(sub, 2, a - b)
FUNCTION(mult, 2, a * b)
FUNCTION(neg, 1, -a)
FUNCTION(where, 3, a != 0 ? b : c)
FUNCTION(greater, 2, a > b)
FUNCTION(less, 2, a < b)
FUNCTION(equal, 2, a == b)
FUNCTION(greater_equal, 2, a >= b)
FUNCTION(less_equal, 2, a <= b)
FUNCTION(not_equal, 2, a != b)

// Of two NaN, the first. One that loses leaves the other number.
static inline float nan_of(float a, float b, bool drop) { return (a != a) != drop ? a : b; }
static inline float larger(float a, float b, bool drop) { return a != a || b != b ? nan_of(a, b, drop) : a > b ? a : b; }
static inline float smaller(float a, float b, bool drop) { return a != a || b != b ? nan_of(a, b, drop) : a < b ? a : b; }

FLOATS(max, 2, larger(a, b, drop))
INTS(max, 2, a > b ? a : b)
static const function max = {max_floats, max_ints};
FLOATS(min, 2, smaller(a, b, drop))
INTS(min, 2, a < b ? a : b)
static const function min = {min_floats, min_ints};
FLOATS(abs, 1, fabsf(a))
INTS(abs, 1, a < 0 ? -a : a)
static const function absolute = {abs_floats, abs_ints};

FLOAT_FUNCTION(divide, 2, a / b)
FLOAT_FUNCTION(power, 2, powf(a, b))
FLOAT_FUNCTION(square_root, 1, sqrtf(a))
FLOAT_FUNCTION(reciprocal_root, 1, 1 / sqrtf(a))
FLOAT_FUNCTION(reciprocal, 1, 1 / a)
FLOAT_FUNCTION(exponential, 1, expf(a))
FLOAT_FUNCTION(logarithm, 1, logf(a))
FLOAT_FUNCTION(logarithm2, 1, log2f(a))
FLOAT_FUNCTION(round_down, 1, floorf(a))
FLOAT_FUNCTION(error_function, 1, erff(a))
FLOAT_FUNCTION(hyperbolic_tangent, 1, tanhf(a))
FLOAT_FUNCTION(sigmoid, 1, 1 / (1 + expf(-a)))
FLOAT_FUNCTION(silu, 1, a / (1 + expf(-a)))
FLOAT_FUNCTION(relu, 1, a > 0 ? a : a != a ? a : 0)
FLOAT_FUNCTION(is_finite, 1, a - a == 0)
FLOAT_FUNCTION(is_nan, 1, a != a)

static float silu_slope(float x) {
	const float s = 1 / (1 + expf(-x));
	return s * (1 + x * (1 - s));
}
FLOAT_FUNCTION(silu_bwd, 2, a * silu_slope(b)) // [gradient, x]

// gelu_fwd with its parameter structure's flag computes the tanh form, else erf's.
static float gelu_erf(float x) { return 0.5f * x * (1 + erff(x * 0.70710678f)); }
static float gelu_tanh(float x) { return 0.5f * x * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x))); }
FLOAT_FUNCTION(gelu, 1, gelu_erf(a))
FLOAT_FUNCTION(gelu_approximate, 1, gelu_tanh(a))

// A walk over all operands: sizes that dimensions have in common, and the strides of
// each operand, in elements, 0 where it is broadcast.
typedef struct {
	uint64_t sizes[MAX_DIMS];
	uint64_t strides[MAX_IN + 1][MAX_DIMS];
} walk;

// plan merges dimensions that lie behind each other in every operand.
static walk plan(const call *c) {
	walk w;
	const uint32_t operands = c->ins + 1;
	int last = -1;
	for (int d = 0; d < MAX_DIMS; d++) {
		uint64_t strides[MAX_IN + 1];
		for (uint32_t i = 0; i < operands; i++) {
			const operand *o = i < c->ins ? c->in[i] : c->out[0];
			strides[i] = o->sizes[d] > 1;
			for (int e = 0; e < d; e++)
				strides[i] *= o->sizes[e];
		}
		const uint64_t size = c->out[0]->sizes[d];
		bool merge = last >= 0;
		for (uint32_t i = 0; i < operands && merge; i++)
			merge = strides[i] == w.strides[i][last] * w.sizes[last];
		if (size > 1 || d == MAX_DIMS - 1) {
			if (merge && size > 1) {
				w.sizes[last] *= size;
			} else if (size > 1 || last < 0) {
				w.sizes[++last] = size;
				for (uint32_t i = 0; i < operands; i++)
					w.strides[i][last] = strides[i];
			}
		}
	}
	while (++last < MAX_DIMS) {
		w.sizes[last] = 1;
		for (uint32_t i = 0; i < operands; i++)
			w.strides[i][last] = 0;
	}
	return w;
}

// gather_floats gives n elements from at on, of stride 0 or 1.
static const float *gather_floats(float *buffer, const operand *o, uint64_t at, uint64_t stride, uint64_t n, bool gaudi3) {
	if (stride == 1 && o->type == F32)
		return (const float *)o->data + at;
	if (stride == 1) {
		load(buffer, o, at, n, gaudi3);
		return buffer;
	}
	const float x = element(o, at, gaudi3);
	for (uint64_t i = 0; i < n; i++)
		buffer[i] = x;
	return buffer;
}

static const int32_t *gather_ints(int32_t *buffer, const operand *o, uint64_t at, uint64_t stride, uint64_t n) {
	for (uint64_t i = 0; i < n; i++)
		buffer[i] = o->type == I8 ? ((const int8_t *)o->data)[at + stride * i] : ((const int32_t *)o->data)[at + stride * i];
	return buffer;
}

static void run_chunk(const call *c, const function *f, const uint64_t *at, const walk *w, uint64_t n) {
	const uint32_t ins = c->ins;
	const operand *o = c->out[0];
	if (c->type != I32) {
		float buffers[MAX_IN + 1][CHUNK];
		const float *in[MAX_IN] = {0};
		for (uint32_t i = 0; i < ins; i++)
			in[i] = gather_floats(buffers[i], c->in[i], at[i], w->strides[i][0], n, c->gaudi3);
		f->floats(buffers[MAX_IN], in, n, c->drop_nan); // an input may lie where the output does
		store(o, at[ins], buffers[MAX_IN], n, c->gaudi3);
		return;
	}
	int32_t buffers[MAX_IN + 1][CHUNK];
	const int32_t *in[MAX_IN] = {0};
	for (uint32_t i = 0; i < ins; i++)
		in[i] = gather_ints(buffers[i], c->in[i], at[i], w->strides[i][0], n);
	f->ints(buffers[MAX_IN], in, n);
	for (uint64_t i = 0; i < n; i++)
		if (o->type == I8)
			((int8_t *)o->data)[at[ins] + i] = buffers[MAX_IN][i];
		else
			((int32_t *)o->data)[at[ins] + i] = buffers[MAX_IN][i];
}

typedef struct {
	const call *c;
	const function *f;
	walk w;
} job;

static void run_range(void *data, uint64_t from, uint64_t to) {
	const job *j = data;
	const walk *w = &j->w;
	const uint64_t *s = w->sizes;
	for (uint64_t n; from < to; from += n) {
		const uint64_t row = from / s[0], column = from % s[0];
		const uint64_t index[] = {column, row % s[1], row / s[1] % s[2], row / s[1] / s[2] % s[3], row / s[1] / s[2] / s[3]};
		uint64_t at[MAX_IN + 1] = {0};
		for (uint32_t i = 0; i <= j->c->ins; i++)
			for (int d = 0; d < MAX_DIMS; d++)
				at[i] += index[d] * w->strides[i][d];
		n = s[0] - column < CHUNK ? s[0] - column : CHUNK;
		n = to - from < n ? to - from : n;
		run_chunk(j->c, j->f, at, w, n);
	}
}

static void run_function(const call *c, const function *f) {
	parallel(elements(c->out[0]), SMALL, run_range, &(job){c, f, plan(c)});
}

static void run(const call *c) { run_function(c, c->kernel->detail); }

static void run_gelu(const call *c) {
	run_function(c, c->params_size && *(const bool *)c->params ? &gelu_approximate : &gelu);
}

static const char *check(const call *c) {
	for (uint32_t d = 0; d < MAX_DIMS; d++) {
		uint64_t size = 1;
		for (uint32_t i = 0; i < c->ins; i++) {
			const uint64_t other = c->in[i]->sizes[d];
			if (size > 1 && other > 1 && size != other)
				return "sizes of inputs differ";
			size = other > size ? other : size;
		}
		if (c->out[0]->sizes[d] != size)
			return "the output has other sizes than the inputs, broadcast";
	}
	return NULL;
}

// Reductions: sums in float64, rounded once.

typedef struct {
	double start;
	void (*each)(double *restrict to, const float *restrict from, uint64_t n, bool drop_nan); // into n results
	void (*all)(double *restrict to, const float *restrict from, uint64_t n, bool drop_nan);  // into one
	bool mean;
} reduction;

#define EACH(name, value)                                                                                             \
	WIDE static void each_##name(double *restrict to, const float *restrict from, uint64_t n, bool drop) {        \
		for (uint64_t i = 0; i < n; i++) {                                                                    \
			const double t = to[i];                                                                       \
			const float x = from[i];                                                                      \
			to[i] = value;                                                                                \
		}                                                                                                     \
	}

// Sums go on where they ended.
#define SUM(name, value)                                                                                              \
	EACH(name, t + value)                                                                                         \
	static void all_##name(double *restrict to, const float *restrict from, uint64_t n, bool drop) {              \
		double t = *to;                                                                                       \
		for (uint64_t i = 0; i < n; i++) {                                                                    \
			const float x = from[i];                                                                      \
			t += value;                                                                                   \
		}                                                                                                     \
		*to = t;                                                                                              \
	}

enum { LANES = 16 };

// Extremes come in any order, so that lanes of a vector have one each.
#define EXTREME(name, of, start)                                                                                      \
	EACH(name, of(t, x, drop))                                                                                    \
	WIDE static void all_##name(double *restrict to, const float *restrict from, uint64_t n, bool drop) {         \
		float lane[LANES];                                                                                    \
		for (int j = 0; j < LANES; j++)                                                                       \
			lane[j] = start;                                                                              \
		for (uint64_t i = 0; i < n / LANES; i++)                                                              \
			for (int j = 0; j < LANES; j++)                                                               \
				lane[j] = of(lane[j], from[i * LANES + j], drop);                                     \
		for (uint64_t i = n / LANES * LANES; i < n; i++)                                                      \
			lane[0] = of(lane[0], from[i], drop);                                                         \
		for (int j = 0; j < LANES; j++)                                                                       \
			*to = of(*to, lane[j], drop);                                                                 \
	}

SUM(sum, x)
SUM(square, (double)x * x)
EXTREME(max, larger, -INFINITY)
EXTREME(min, smaller, INFINITY)

static const reduction sum = {0, each_sum, all_sum}, sum_square = {0, each_square, all_square}, mean = {0, each_sum, all_sum, true};
static const reduction maximum = {-INFINITY, each_max, all_max}, minimum = {INFINITY, each_min, all_min};

// ns_Reduction::ParamsV2.
typedef struct {
	uint32_t mask;
	bool keep;
} reduction_params;

static uint32_t mask_of(const call *c) {
	const reduction_params *p = c->params;
	return p->mask ? p->mask : (1u << c->in[0]->dims) - 1;
}

static const char *check_reduction(const call *c) {
	const reduction_params *p = c->params;
	const operand *a = c->in[0], *o = c->out[0];
	const uint32_t mask = mask_of(c);
	if (mask >> a->dims)
		return "the mask has a dimension that the input has not";
	uint64_t sizes[MAX_DIMS];
	uint32_t dims = 0;
	for (uint32_t d = 0; d < a->dims; d++)
		if (!(mask >> d & 1) || p->keep)
			sizes[dims++] = mask >> d & 1 ? 1 : a->sizes[d];
	if (!dims)
		sizes[dims++] = 1;
	if (dims != o->dims || memcmp(sizes, o->sizes, dims * sizeof *sizes))
		return "the output has other sizes than what is left of the input";
	return NULL;
}

typedef struct {
	const call *c;
	uint64_t strides[MAX_DIMS]; // of the results, 0 along what is reduced
	uint64_t each;              // elements that make a result
} reducing;

// reduce_range computes some of the results, from all elements in their order.
static void reduce_range(void *data, uint64_t first, uint64_t last) {
	const reducing *g = data;
	const call *c = g->c;
	const reduction *r = c->kernel->detail;
	const operand *a = c->in[0];
	double *totals = malloc((last - first) * sizeof *totals);
	for (uint64_t i = 0; i < last - first; i++)
		totals[i] = r->start;
	const uint64_t *s = a->sizes, rows = elements(a) / s[0];
	for (uint64_t row = 0; row < rows; row++) {
		const uint64_t index[] = {0, row % s[1], row / s[1] % s[2], row / s[1] / s[2] % s[3], row / s[1] / s[2] / s[3]};
		uint64_t to = 0; // result of the row's first element
		for (int d = 1; d < MAX_DIMS; d++)
			to += index[d] * g->strides[d];
		uint64_t from = 0, end = s[0]; // elements of the row whose results are wanted
		if (g->strides[0]) {
			from = first > to ? first - to : 0;
			end = last < to + end ? last - to : end;
		} else if (to < first || to >= last) {
			continue;
		}
		for (uint64_t at = from; at < end && to < last; at += CHUNK) {
			float x[CHUNK];
			const uint64_t n = end - at < CHUNK ? end - at : CHUNK;
			load(x, a, row * s[0] + at, n, c->gaudi3);
			(g->strides[0] ? r->each : r->all)(totals + to + at * g->strides[0] - first, x, n, c->drop_nan);
		}
	}
	for (uint64_t i = first; i < last; i++) {
		const float x = r->mean ? totals[i - first] / g->each : totals[i - first];
		store(c->out[0], i, &x, 1, c->gaudi3);
	}
	free(totals);
}

static void run_reduction(const call *c) {
	const operand *a = c->in[0];
	reducing g = {.c = c};
	uint64_t n = 1;
	for (int d = 0; d < MAX_DIMS; d++) {
		g.strides[d] = mask_of(c) >> d & 1 ? 0 : n;
		n *= mask_of(c) >> d & 1 ? 1 : a->sizes[d];
	}
	g.each = elements(a) / n;
	parallel(n, 1 + SMALL / g.each, reduce_range, &g);
}

enum { FLOATING = F32 | BF16, NUMBERS = F32 | BF16 | I32 };

#define UNARY(name, types, f) {name, types, "T", "T", {0}, check, run, &f, true}
#define BINARY(name, types, f) {name, types, "TT", "T", {0}, check, run, &f, true}
#define COMPARISON(name, f) {name, NUMBERS, "TT", "B", {0}, check, run, &f, true}
#define REDUCTION(name, r) {name, FLOATING, "T", "T", {8}, check_reduction, run_reduction, &r}

const kernel elementwise_kernels[] = {
	BINARY("add_fwd", NUMBERS, add),
	BINARY("sub_fwd", NUMBERS, sub),
	BINARY("mult_fwd", NUMBERS, mult),
	BINARY("div_fwd", FLOATING, divide),
	BINARY("max_fwd", NUMBERS, max),
	BINARY("min_fwd", NUMBERS, min),
	BINARY("pow_fwd", FLOATING, power),
	COMPARISON("greater_fwd", greater),
	COMPARISON("less_fwd", less),
	COMPARISON("equal_fwd", equal),
	COMPARISON("greater_equal_fwd", greater_equal),
	COMPARISON("less_equal_fwd", less_equal),
	COMPARISON("not_equal_fwd", not_equal),
	{"where_fwd", NUMBERS | F16 | I8, "BTT", "T", {0}, check, run, &where, true},
	UNARY("abs_fwd", NUMBERS, absolute),
	UNARY("neg_fwd", NUMBERS, neg),
	UNARY("sqrt_fwd", FLOATING, square_root),
	UNARY("rsqrt_fwd", FLOATING, reciprocal_root),
	UNARY("reciprocal_fwd", FLOATING, reciprocal),
	UNARY("exp_fwd", FLOATING, exponential),
	UNARY("log_fwd", FLOATING, logarithm),
	UNARY("log2_fwd", FLOATING, logarithm2),
	UNARY("floor_fwd", FLOATING, round_down),
	UNARY("erf_fwd", FLOATING, error_function),
	UNARY("tanh_fwd", FLOATING, hyperbolic_tangent),
	UNARY("sigmoid_fwd", FLOATING, sigmoid),
	UNARY("silu_fwd", FLOATING, silu),
	UNARY("relu_fwd", FLOATING, relu),
	BINARY("silu_bwd", FLOATING, silu_bwd),
	{"gelu_fwd", FLOATING, "T", "T", {OPTIONAL_PARAMS, 1, 8}, check, run_gelu, NULL, true},
	{"isnan_fwd", FLOATING, "T", "B", {OPTIONAL_PARAMS, 4, 8}, check, run, &is_nan},
	{"isfinite_fwd", FLOATING, "T", "B", {OPTIONAL_PARAMS, 4, 8}, check, run, &is_finite},
	REDUCTION("reduce_sum_multi_dim_fwd", sum),
	REDUCTION("reduce_sum_square_multi_dim_fwd", sum_square),
	REDUCTION("reduce_mean_multi_dim_fwd", mean),
	REDUCTION("reduce_max_multi_dim_fwd", maximum),
	REDUCTION("reduce_min_multi_dim_fwd", minimum),
	{0},
};
