//go:build ignore

// Stand-in for libSynapse.so: elementwise kernels of the tensor processor cores, and
// reductions. They compute in F32, add_fwd also in I32. Dimensions of size 1 are broadcast.
//
// How a real maximum treats NaN is not published. Here it returns NaN, or ignores it if
// STANDIN_NAN is "drop": results that matter must not depend on it.

#define _GNU_SOURCE
#include "libsynapse.h"

#pragma GCC optimize("O3")

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1024, MAX_IN = 3 };

// A function computes n elements.
typedef void function(float *restrict to, const float *const *in, uint64_t n, bool drop_nan);

#define FUNCTION(name, ins, value)                                                                            \
	WIDE static void name##_run(float *restrict to, const float *const *in, uint64_t n, bool drop) {      \
		const float *a_ = in[0], *b_ = in[ins > 1], *c_ = in[ins > 2 ? 2 : 0];                        \
		for (uint64_t i = 0; i < n; i++) {                                                            \
			const float a = a_[i], b __attribute__((unused)) = b_[i], c __attribute__((unused)) = c_[i]; \
			to[i] = value;                                                                        \
		}                                                                                             \
	}                                                                                                     \
	static function *const name = name##_run;

// nan_of returns NaN, the first of two, or with drop the other value.
static inline float nan_of(float a, float b, bool drop) { return (a != a) != drop ? a : b; }
static inline float larger(float a, float b, bool drop) { return a != a || b != b ? nan_of(a, b, drop) : a > b ? a : b; }
static inline float smaller(float a, float b, bool drop) { return a != a || b != b ? nan_of(a, b, drop) : a < b ? a : b; }

FUNCTION(add, 2, a + b)
FUNCTION(sub, 2, a - b)
FUNCTION(mult, 2, a * b)
FUNCTION(divide, 2, a / b)
FUNCTION(max, 2, larger(a, b, drop))
FUNCTION(min, 2, smaller(a, b, drop))
FUNCTION(where, 3, a != 0 ? b : c)
FUNCTION(greater, 2, a > b)
FUNCTION(less, 2, a < b)
FUNCTION(less_equal, 2, a <= b)
FUNCTION(equal, 2, a == b)
FUNCTION(absolute, 1, fabsf(a))
FUNCTION(square_root, 1, sqrtf(a))
FUNCTION(exponential, 1, expf(a))
FUNCTION(logarithm, 1, logf(a))
FUNCTION(round_down, 1, floorf(a))
FUNCTION(error_function, 1, erff(a))
FUNCTION(sigmoid, 1, 1 / (1 + expf(-a)))
FUNCTION(silu, 1, a / (1 + expf(-a)))
FUNCTION(is_finite, 1, a - a == 0)
FUNCTION(is_nan, 1, a != a)

// walk has the sizes of the merged dimensions, and each operand's strides in elements, 0
// where it is broadcast.
typedef struct {
	uint64_t sizes[MAX_DIMS];
	uint64_t strides[MAX_IN + 1][MAX_DIMS];
} walk;

// plan merges dimensions that are contiguous in every operand.
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

// gather_floats returns n elements from `at`, with stride 0 or 1.
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

static void run_chunk(const call *c, const uint64_t *at, const walk *w, uint64_t n) {
	const uint32_t ins = c->ins;
	const operand *o = c->out[0];
	if (c->type == I32) { // add_fwd: F32 would lose bits
		const int32_t *a = (const int32_t *)c->in[0]->data + at[0], *b = (const int32_t *)c->in[1]->data + at[1];
		int32_t *to = (int32_t *)o->data + at[ins];
		for (uint64_t i = 0; i < n; i++)
			to[i] = a[i * w->strides[0][0]] + b[i * w->strides[1][0]];
		return;
	}
	function *const f = *(function *const *)c->kernel->detail;
	float buffers[MAX_IN + 1][CHUNK];
	const float *in[MAX_IN] = {0};
	for (uint32_t i = 0; i < ins; i++)
		in[i] = gather_floats(buffers[i], c->in[i], at[i], w->strides[i][0], n, c->gaudi3);
	f(buffers[MAX_IN], in, n, c->drop_nan); // an input may alias the output
	store(o, at[ins], buffers[MAX_IN], n, c->gaudi3);
}

typedef struct {
	const call *c;
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
		run_chunk(j->c, at, w, n);
	}
}

static void run(const call *c) { parallel(elements(c->out[0]), SMALL, run_range, &(job){c, plan(c)}); }

static const char *check(const call *c) {
	for (uint32_t d = 0; d < MAX_DIMS; d++) {
		uint64_t size = 1;
		for (uint32_t i = 0; i < c->ins; i++) {
			const uint64_t other = c->in[i]->sizes[d];
			if (size > 1 && other > 1 && size != other)
				return "the sizes of the inputs differ";
			size = other > size ? other : size;
		}
		if (c->out[0]->sizes[d] != size)
			return "the sizes of the output and the broadcast inputs differ";
	}
	return NULL;
}

// Reductions: sums in float64, rounded once.

typedef struct {
	double start;
	void (*each)(double *restrict to, const float *restrict from, uint64_t n, bool drop_nan); // into n results
	void (*all)(double *restrict to, const float *restrict from, uint64_t n, bool drop_nan);  // into one
} reduction;

#define EACH(name, value)                                                                                             \
	WIDE static void each_##name(double *restrict to, const float *restrict from, uint64_t n, bool drop) {        \
		for (uint64_t i = 0; i < n; i++) {                                                                    \
			const double t = to[i];                                                                       \
			const float x = from[i];                                                                      \
			to[i] = value;                                                                                \
		}                                                                                                     \
	}

EACH(sum, t + x)

// all_sum continues the sum at *to.
static void all_sum(double *restrict to, const float *restrict from, uint64_t n, bool drop) {
	for (uint64_t i = 0; i < n; i++)
		*to += from[i];
}

enum { LANES = 16 };

// Extremes do not depend on the order, so each vector lane has its own.
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

EXTREME(max, larger, -INFINITY)
EXTREME(min, smaller, INFINITY)

static const reduction sum = {0, each_sum, all_sum}, maximum = {-INFINITY, each_max, all_max}, minimum = {INFINITY, each_min, all_min};

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
		return "the mask has a dimension that the input lacks";
	uint64_t sizes[MAX_DIMS];
	uint32_t dims = 0;
	for (uint32_t d = 0; d < a->dims; d++)
		if (!(mask >> d & 1) || p->keep)
			sizes[dims++] = mask >> d & 1 ? 1 : a->sizes[d];
	if (!dims)
		sizes[dims++] = 1;
	if (dims != o->dims || memcmp(sizes, o->sizes, dims * sizeof *sizes))
		return "the output sizes must be the input's without the reduced dimensions";
	return NULL;
}

typedef struct {
	const call *c;
	uint64_t strides[MAX_DIMS]; // of the results, 0 in reduced dimensions
	uint64_t each;              // elements per result
} reducing;

// reduce_range computes results [first, last), with elements in order.
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
		uint64_t from = 0, end = s[0]; // elements of the row that belong to the range
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
		const float x = totals[i - first];
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

enum { FLOATING = F32 | BF16 };

#define UNARY(name, f) {name, FLOATING, "T", "T", {0}, check, run, &f, true}
#define BINARY(name, f) {name, FLOATING, "TT", "T", {0}, check, run, &f, true}
#define COMPARISON(name, f) {name, FLOATING, "TT", "B", {0}, check, run, &f, true}
#define REDUCTION(name, r) {name, FLOATING, "T", "T", {8}, check_reduction, run_reduction, &r}

const kernel elementwise_kernels[] = {
	{"add_fwd", FLOATING | I32, "TT", "T", {0}, check, run, &add, true},
	BINARY("sub_fwd", sub),
	BINARY("mult_fwd", mult),
	BINARY("div_fwd", divide),
	BINARY("max_fwd", max),
	BINARY("min_fwd", min),
	COMPARISON("greater_fwd", greater),
	COMPARISON("less_fwd", less),
	COMPARISON("less_equal_fwd", less_equal),
	COMPARISON("equal_fwd", equal),
	{"where_fwd", FLOATING | F16 | I8, "BTT", "T", {0}, check, run, &where, true},
	UNARY("abs_fwd", absolute),
	UNARY("sqrt_fwd", square_root),
	UNARY("exp_fwd", exponential),
	UNARY("log_fwd", logarithm),
	UNARY("floor_fwd", round_down),
	UNARY("erf_fwd", error_function),
	UNARY("sigmoid_fwd", sigmoid),
	UNARY("silu_fwd", silu),
	{"isnan_fwd", FLOATING, "T", "B", {0}, check, run, &is_nan},
	{"isfinite_fwd", FLOATING, "T", "B", {0}, check, run, &is_finite},
	REDUCTION("reduce_sum_multi_dim_fwd", sum),
	REDUCTION("reduce_max_multi_dim_fwd", maximum),
	REDUCTION("reduce_min_multi_dim_fwd", minimum),
	{0},
};
