//go:build ignore

// Stand-in for libSynapse.so: products of matrices, as the matrix engine computes
// them.
//
// Products of FP8 are fused sums, bit for bit those of package backend/arith's models
// gaudi2 and gaudi3, which says where they are from: a group of products is aligned to
// the largest exponent among them, cut off below 24 bits, and added exactly. Gaudi2
// adds the sum of 16 to what came before, rounded to nearest. Gaudi3 aligns what came
// before as a ninth term of 8, and rounds toward zero. Groups follow each other along
// k, which is a choice of ours: how the compiler splits k is not published. Products
// of wider types are sums in F32, k ascending.

#define _GNU_SOURCE
#include "libsynapse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC optimize("O3", "fp-contract=off", "wrapv")

// A product of FP8 or of wider matrices, of which only the last two dimensions are
// told: a is read [m][k] and b [k][n], wherever the operands have them.
typedef struct {
	const operand *a, *b;
	uint64_t at_a, at_b; // of the first element
	uint64_t m, n, k;
	uint64_t a_row, a_column, b_row, b_column; // strides
	bool gaudi3;
	float *out; // [m][n]
} product;

// FP8.

enum { COLUMNS = 8, BITS = 24 };

// What an operand's element counts with: its value, and the power of two of its
// exponent, which of a subnormal is at least the format's.
typedef struct {
	double value, power;
} term;

static const double least_float = 0x1p-126;

typedef struct {
	term of[256];
} terms;

// power_of is the power of two of x's exponent, 0 of 0.
static inline double power_of(double x) {
	uint64_t bits;
	memcpy(&bits, &x, sizeof bits);
	bits &= 0x7ff0000000000000;
	memcpy(&x, &bits, sizeof x);
	return x;
}

// terms_of makes the table of a format. On Gaudi2, a bias scales it.
static terms terms_of(const operand *o, bool gaudi3) {
	const int bias = o->type == E5M2 ? 15 : 7;
	const double scale = o->bias ? ldexp(1, bias - (int)o->bias) : 1;
	const int least = gaudi3 ? (o->type == E5M2 ? -16 : -9) : -14;
	terms t;
	for (int code = 0; code < 256; code++) {
		const double x = fp8_value(o->type, code, gaudi3);
		const double power = x == 0 ? 0 : fmax(power_of(x), ldexp(1, least));
		t.of[code] = (term){x * scale, power * scale};
	}
	return t;
}

// nearest_sum is x + y rounded once to F32, subnormals to zero. Where float64 loses
// some of the sum its last bit is made odd, so that it decides no tie.
static inline float nearest_sum(double x, double y) {
	double sum = x + y;
	const double part = sum - x;
	const double rest = (x - (sum - part)) + (y - part);
	int64_t bits;
	memcpy(&bits, &sum, sizeof bits);
	if (rest != 0 && !(bits & 1)) {
		bits += (rest > 0) == (sum > 0) ? 1 : -1;
		memcpy(&sum, &bits, sizeof sum);
	}
	const float z = sum;
	return fabsf(z) >= least_float ? z : 0;
}

static inline float toward_zero(double x) {
	if (fabs(x) >= 0x1p128)
		return copysign(INFINITY, x);
	float y = x;
	if (fabs(y) > fabs(x)) {
		uint32_t bits;
		memcpy(&bits, &y, sizeof bits);
		bits--;
		memcpy(&y, &bits, sizeof y);
	}
	return y + 0.0f;
}

// fuse adds one group of products to each of COLUMNS sums. a has group terms, b group
// times COLUMNS. Of what is not finite it makes nonsense, which its caller replaces.
__attribute__((target_clones("avx2", "default"))) static void fuse(float *c, const term *a, const double *b_value, const double *b_power, int group, bool gaudi3) {
	double largest[COLUMNS], scale[COLUMNS];
	int32_t total[COLUMNS] = {0};
	for (int j = 0; j < COLUMNS; j++) {
		const double power = gaudi3 ? power_of(c[j]) : 0;
		largest[j] = power > least_float ? power : least_float;
	}
	for (int l = 0; l < group; l++)
		for (int j = 0; j < COLUMNS; j++) {
			const double power = a[l].power * b_power[l * COLUMNS + j];
			largest[j] = power > largest[j] ? power : largest[j];
		}
	for (int j = 0; j < COLUMNS; j++)
		scale[j] = (1 << BITS) / largest[j];
	for (int l = 0; l < group; l++)
		for (int j = 0; j < COLUMNS; j++) // a product's significand is below 4
			total[j] += (int32_t)(a[l].value * b_value[l * COLUMNS + j] * scale[j]);
	for (int j = 0; j < COLUMNS; j++) {
		const double unit = largest[j] / (1 << BITS);
		if (gaudi3)
			c[j] = toward_zero((total[j] + (int32_t)(c[j] * scale[j])) * unit);
		else
			c[j] = nearest_sum(total[j] * unit, fabsf(c[j]) < least_float ? 0 : c[j]);
	}
}

// special is a sum in which something is not finite.
static float special(const term *a, const double *b_value, uint64_t k) {
	double sum = 0;
	for (uint64_t l = 0; l < k; l++)
		sum += a[l].value * b_value[l * COLUMNS];
	if (sum != sum) { // the engine's NaN
		const uint32_t bits = 0x7fffffff;
		float nan;
		memcpy(&nan, &bits, sizeof nan);
		return nan;
	}
	return sum;
}

static void multiply_fp8(const product *p) {
	const uint64_t group = p->gaudi3 ? 8 : 16, k = (p->k + group - 1) / group * group;
	const terms table_a = terms_of(p->a, p->gaudi3), table_b = terms_of(p->b, p->gaudi3);
	const uint8_t *a = (const uint8_t *)p->a->data + p->at_a, *b = (const uint8_t *)p->b->data + p->at_b;
	term *rows = calloc(p->m * k, sizeof *rows);
	bool *finite_row = malloc(p->m);
	for (uint64_t i = 0; i < p->m; i++) {
		finite_row[i] = true;
		for (uint64_t l = 0; l < p->k; l++) {
			const term t = table_a.of[a[i * p->a_row + l * p->a_column]];
			rows[i * k + l] = t;
			finite_row[i] &= t.value - t.value == 0;
		}
	}
	double *values = malloc(k * COLUMNS * sizeof *values), *powers = malloc(k * COLUMNS * sizeof *powers);
	for (uint64_t first = 0; first < p->n; first += COLUMNS) {
		const uint64_t n = p->n - first < COLUMNS ? p->n - first : COLUMNS;
		bool finite_column[COLUMNS];
		memset(finite_column, true, sizeof finite_column);
		memset(values, 0, k * COLUMNS * sizeof *values);
		memset(powers, 0, k * COLUMNS * sizeof *powers);
		for (uint64_t l = 0; l < p->k; l++)
			for (uint64_t j = 0; j < n; j++) {
				const term t = table_b.of[b[l * p->b_row + (first + j) * p->b_column]];
				values[l * COLUMNS + j] = t.value;
				powers[l * COLUMNS + j] = t.power;
				finite_column[j] &= t.value - t.value == 0;
			}
		for (uint64_t i = 0; i < p->m; i++) {
			float c[COLUMNS] = {0};
			for (uint64_t l = 0; l < k; l += group)
				fuse(c, rows + i * k + l, values + l * COLUMNS, powers + l * COLUMNS, group, p->gaudi3);
			for (uint64_t j = 0; j < n; j++)
				p->out[i * p->n + first + j] = finite_row[i] && finite_column[j] ? c[j] : special(rows + i * k, values + j, p->k);
		}
	}
	free(rows);
	free(finite_row);
	free(values);
	free(powers);
}

// Wider types.

enum { WIDTH = 32 };

__attribute__((target_clones("avx2", "default"))) static void sum_columns(float *restrict c, const float *restrict a, const float *restrict b, uint64_t k) {
	for (uint64_t l = 0; l < k; l++)
		for (int j = 0; j < WIDTH; j++)
			c[j] += a[l] * b[l * WIDTH + j];
}

// unpack reads a matrix as [rows][columns] of floats.
static float *unpack(const operand *o, uint64_t at, uint64_t rows, uint64_t columns, uint64_t row, uint64_t column, bool gaudi3) {
	float *out = malloc(rows * columns * sizeof *out), *raw = malloc(rows * columns * sizeof *raw);
	load(raw, o, at, rows * columns, gaudi3);
	for (uint64_t i = 0; i < rows; i++)
		for (uint64_t j = 0; j < columns; j++)
			out[i * columns + j] = raw[i * row + j * column];
	free(raw);
	return out;
}

static void multiply_floats(const product *p) {
	float *a = unpack(p->a, p->at_a, p->m, p->k, p->a_row, p->a_column, p->gaudi3);
	float *b = unpack(p->b, p->at_b, p->k, p->n, p->b_row, p->b_column, p->gaudi3);
	float *panel = malloc(p->k * WIDTH * sizeof *panel);
	for (uint64_t first = 0; first < p->n; first += WIDTH) {
		const uint64_t n = p->n - first < WIDTH ? p->n - first : WIDTH;
		memset(panel, 0, p->k * WIDTH * sizeof *panel);
		for (uint64_t l = 0; l < p->k; l++)
			memcpy(panel + l * WIDTH, b + l * p->n + first, n * sizeof *panel);
		for (uint64_t i = 0; i < p->m; i++) {
			float c[WIDTH] = {0};
			sum_columns(c, a + i * p->k, panel, p->k);
			memcpy(p->out + i * p->n + first, c, n * sizeof *c);
		}
	}
	free(a);
	free(b);
	free(panel);
}

// Nodes.

// synGEMMParams.
typedef struct {
	bool transpose_a, transpose_b;
} gemm_params;

static gemm_params params_of(const call *c) { return c->params_size ? *(const gemm_params *)c->params : (gemm_params){false, false}; }

static bool is_fp8(uint32_t type) { return type == E4M3 || type == E5M2; }

// What the engine takes and gives (mme_reference, and synapse's checks of nodes).
static const char *check_types(const call *c) {
	const operand *a = c->in[0], *b = c->in[1];
	const uint32_t taken = F32 | BF16 | F16 | E4M3 | E5M2;
	if (!(a->type & taken) || !(b->type & taken) || !(c->out[0]->type & taken))
		return "the matrix engine does not take this type";
	if (a->type != b->type && !(c->gaudi3 && is_fp8(a->type) && is_fp8(b->type)))
		return "input element types should match";
	for (int i = 0; i < 2; i++) {
		const operand *o = c->in[i];
		if (!o->bias)
			continue;
		if (!is_fp8(o->type))
			return "an exponent bias of an operand that is not FP8";
		const bool known = c->gaudi3 ? o->bias < 63 : o->type == E5M2 ? o->bias == 15 : o->bias == 3 || o->bias == 7 || o->bias == 11 || o->bias == 15;
		if (!known)
			return "an exponent bias that the engine has not";
	}
	if (c->out[0]->bias)
		return "an exponent bias of an output";
	return NULL;
}

static const char *check_sizes(const call *c) {
	const gemm_params p = params_of(c);
	const operand *a = c->in[0], *b = c->in[1], *o = c->out[0];
	const uint64_t m = a->sizes[!p.transpose_a], k = a->sizes[p.transpose_a];
	const uint64_t n = b->sizes[p.transpose_b], l = b->sizes[!p.transpose_b];
	if (a->dims < 2 || b->dims < 2 || o->dims < 2)
		return "an operand is no matrix";
	if (k != l)
		return "the inner sizes differ";
	if (o->sizes[0] != n || o->sizes[1] != m)
		return "the output has other sizes than the product";
	for (int d = 2; d < MAX_DIMS; d++) {
		const uint64_t x = a->sizes[d], y = b->sizes[d];
		if (x != y && x != 1 && y != 1)
			return "batch sizes differ";
		if (o->sizes[d] != (x > y ? x : y))
			return "the output has other batch sizes than the product";
	}
	return NULL;
}

static const char *check_batch(const call *c) {
	const char *reason = check_types(c);
	return reason ? reason : check_sizes(c);
}

static const char *check_gemm(const call *c) {
	if (c->in[0]->dims != 2 || c->in[1]->dims != 2)
		return "gemm takes matrices: batches are batch_gemm's";
	return check_batch(c);
}

// multiply computes one matrix of the batch.
static void multiply(const call *c, const uint64_t *batch, float *out) {
	const gemm_params t = params_of(c);
	const operand *a = c->in[0], *b = c->in[1], *o = c->out[0];
	product p = {.a = a, .b = b, .m = o->sizes[1], .n = o->sizes[0], .k = a->sizes[t.transpose_a], .gaudi3 = c->gaudi3, .out = out};
	uint64_t stride_a = a->sizes[0] * a->sizes[1], stride_b = b->sizes[0] * b->sizes[1];
	for (int d = 2; d < MAX_DIMS; d++) {
		p.at_a += (a->sizes[d] > 1 ? batch[d] : 0) * stride_a;
		p.at_b += (b->sizes[d] > 1 ? batch[d] : 0) * stride_b;
		stride_a *= a->sizes[d];
		stride_b *= b->sizes[d];
	}
	p.a_row = t.transpose_a ? 1 : p.k;
	p.a_column = t.transpose_a ? p.m : 1;
	p.b_row = t.transpose_b ? 1 : p.n;
	p.b_column = t.transpose_b ? p.k : 1;
	if (is_fp8(a->type))
		multiply_fp8(&p);
	else
		multiply_floats(&p);
}

static void run_batch(const call *c, void (*finish)(const call *, float *out, uint64_t n)) {
	const operand *o = c->out[0];
	const uint64_t n = o->sizes[0] * o->sizes[1], *s = o->sizes;
	float *out = malloc(n * sizeof *out);
	for (uint64_t i = 0; i < s[2] * s[3] * s[4]; i++) {
		const uint64_t batch[] = {0, 0, i % s[2], i / s[2] % s[3], i / s[2] / s[3]};
		multiply(c, batch, out);
		if (finish)
			finish(c, out, n);
		store(o, i * n, out, n, c->gaudi3); // too large for FP8 becomes infinity: clipping is for inference
	}
	free(out);
}

static void run_gemm(const call *c) { run_batch(c, NULL); }

// fp8_gemm: [A, B, inverse scale of A, of B, bias, what is added, scale of the output].
enum { SCALE_A = 2, SCALE_B, BIAS, ADDEND, SCALE_OUT };

static const operand *optional(const call *c, uint32_t i) { return i < c->ins ? c->in[i] : NULL; }

static const char *check_fp8_gemm(const call *c) {
	const char *reason = check_batch(c);
	if (reason)
		return reason;
	if (!is_fp8(c->in[0]->type))
		return "its operands are FP8";
	if (c->in[0]->bias || c->in[1]->bias)
		return "scales are operands here, no exponent bias";
	if (c->ins == 3) // a lone scale of B would be taken for A's
		return "it takes 2 inputs, or at least 4";
	const operand *o = c->out[0];
	for (uint32_t i = SCALE_A; i <= SCALE_B; i++) {
		const operand *s = optional(c, i);
		if (!s || elements(s) == 1)
			continue;
		// By row of A: {1, m}. By column: {n}.
		const bool fit = i == SCALE_A ? s->dims == 2 && s->sizes[0] == 1 && s->sizes[1] == o->sizes[1] : s->sizes[0] == o->sizes[0] && elements(s) == o->sizes[0];
		if (!fit)
			return "a scale has one element, or one for each row of A or column of B";
	}
	if (optional(c, BIAS) && (c->in[BIAS]->sizes[0] != o->sizes[0] || elements(c->in[BIAS]) != o->sizes[0]))
		return "the bias has one element for each column";
	if (optional(c, ADDEND) && !same_sizes(c->in[ADDEND], o))
		return "what is added has other sizes than the output";
	if (optional(c, SCALE_OUT))
		return "no scale of the output here";
	return o->dims > 2 ? "batches are not taken here" : NULL;
}

static void finish_fp8_gemm(const call *c, float *out, uint64_t n) {
	const operand *scale_a = optional(c, SCALE_A), *scale_b = optional(c, SCALE_B), *bias = optional(c, BIAS), *addend = optional(c, ADDEND);
	const uint64_t columns = c->out[0]->sizes[0];
	for (uint64_t i = 0; i < n; i++) {
		const uint64_t row = i / columns, column = i % columns;
		if (scale_a)
			out[i] *= element(scale_a, elements(scale_a) > 1 ? row : 0, c->gaudi3);
		if (scale_b)
			out[i] *= element(scale_b, elements(scale_b) > 1 ? column : 0, c->gaudi3);
		if (bias)
			out[i] += element(bias, column, c->gaudi3);
		if (addend)
			out[i] += element(addend, i, c->gaudi3);
	}
}

static void run_fp8_gemm(const call *c) { run_batch(c, finish_fp8_gemm); }

const kernel gemm_kernels[] = {
	{"gemm", 0, "NN", "N", {OPTIONAL_PARAMS, 2}, check_gemm, run_gemm, NULL},
	{"batch_gemm", 0, "NN", "N", {OPTIONAL_PARAMS, 2}, check_batch, run_gemm, NULL},
	{"fp8_gemm", F32 | BF16, "88?GGGTG", "T", {OPTIONAL_PARAMS, 2}, check_fp8_gemm, run_fp8_gemm, NULL},
	{0},
};
