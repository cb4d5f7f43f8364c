//go:build ignore

// Stand-in for libSynapse.so: GEMMs of the matrix engine.
//
// libsynapse_fp8.c has those of FP8. GEMMs of wider types sum in F32, k ascending, and
// descending in every second launch if their node is not deterministic: the graph compiler
// divides long sums among engines and adds the partial sums in order of arrival
// (mme_concurrency_identifier.cpp).

#define _GNU_SOURCE
#include "libsynapse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC optimize("O3")

// Wider types.

enum { WIDTH = 32 }; // columns with sums in registers

// add_columns adds a·b to WIDTH columns of a row.
static inline __attribute__((always_inline)) void add_columns(float *restrict c, const float *restrict a, const float *restrict b, uint64_t n, uint64_t k) {
	float sum[WIDTH];
	memcpy(sum, c, sizeof sum);
	for (uint64_t l = 0; l < k; l++)
		for (int j = 0; j < WIDTH; j++)
			sum[j] += a[l] * b[l * n + j];
	memcpy(c, sum, sizeof sum);
}

WIDE void add_matmul(float *restrict c, const float *restrict a, const float *restrict b, uint64_t m, uint64_t n, uint64_t k) {
	const uint64_t vectorized = n / WIDTH * WIDTH;
	for (uint64_t first = 0; first < vectorized; first += WIDTH)
		for (uint64_t i = 0; i < m; i++)
			add_columns(c + i * n + first, a + i * k, b + first, n, k);
	for (uint64_t i = 0; i < m && vectorized < n; i++)
		for (uint64_t l = 0; l < k; l++)
			for (uint64_t j = vectorized; j < n; j++)
				c[i * n + j] += a[i * k + l] * b[l * n + j];
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

typedef struct {
	const matmul *p;
	const float *a, *b;
} unpacked;

static void multiply_rows(void *data, uint64_t from, uint64_t to) {
	const unpacked *u = data;
	const matmul *p = u->p;
	memset(p->out + from * p->n, 0, (to - from) * p->n * sizeof *p->out);
	add_matmul(p->out + from * p->n, u->a + from * p->k, u->b, to - from, p->n, p->k);
}

// reverse reverses the order of the n pieces of `width` floats in each group.
static void reverse(float *x, uint64_t groups, uint64_t n, uint64_t width) {
	for (uint64_t g = 0; g < groups; g++)
		for (uint64_t i = 0; i < n / 2; i++)
			for (uint64_t j = 0; j < width; j++) {
				float *first = &x[(g * n + i) * width + j], *last = &x[(g * n + n - 1 - i) * width + j];
				const float kept = *first;
				*first = *last;
				*last = kept;
			}
}

static void multiply_floats(const matmul *p) {
	float *a = unpack(p->a, p->at_a, p->m, p->k, p->a_row, p->a_column, p->gaudi3);
	float *b = unpack(p->b, p->at_b, p->k, p->n, p->b_row, p->b_column, p->gaudi3);
	if (p->backwards) {
		reverse(a, p->m, p->k, 1);
		reverse(b, 1, p->k, p->n);
	}
	parallel(p->m, 1 + SMALL / (p->n * p->k), multiply_rows, &(unpacked){p, a, b});
	free(a);
	free(b);
}

// Nodes.

// synGEMMParams.
typedef struct {
	bool transpose_a, transpose_b;
} gemm_params;

static gemm_params params_of(const call *c) { return c->params_size ? *(const gemm_params *)c->params : (gemm_params){false, false}; }

static bool is_fp8(uint32_t type) { return type == E4M3 || type == E5M2; }

// check_types checks the types that the engine takes (mme_reference, and synapse's checks of
// nodes).
static const char *check_types(const call *c) {
	const operand *a = c->in[0], *b = c->in[1];
	const uint32_t taken = F32 | BF16 | F16 | E4M3 | E5M2;
	if (!(a->type & taken) || !(b->type & taken) || !(c->out[0]->type & taken))
		return "the matrix engine does not support this type";
	// Gaudi3 multiplies E4M3 by E5M2, but SynapseAI 1.16 compiles that for inference only.
	const bool mixed = c->gaudi3 && is_fp8(a->type) && is_fp8(b->type) && setting("STANDIN_MIXED", 0);
	if (a->type != b->type && !mixed)
		return "input element types should match";
	return NULL;
}

static const char *check_sizes(const call *c) {
	const gemm_params p = params_of(c);
	const operand *a = c->in[0], *b = c->in[1], *o = c->out[0];
	const uint64_t m = a->sizes[!p.transpose_a], k = a->sizes[p.transpose_a];
	const uint64_t n = b->sizes[p.transpose_b], l = b->sizes[!p.transpose_b];
	if (a->dims < 2 || b->dims < 2 || o->dims < 2)
		return "an operand has fewer than 2 dimensions";
	if (k != l)
		return "the inner sizes differ";
	if (o->sizes[0] != n || o->sizes[1] != m)
		return "the output sizes must be m and n";
	for (int d = 2; d < MAX_DIMS; d++) {
		const uint64_t x = a->sizes[d], y = b->sizes[d];
		if (x != y && x != 1 && y != 1)
			return "batch sizes differ";
		if (o->sizes[d] != (x > y ? x : y))
			return "the output batch sizes must be the broadcast inputs'";
	}
	return NULL;
}

static const char *check_batch(const call *c) {
	const char *reason = check_types(c);
	return reason ? reason : check_sizes(c);
}

static const char *check_gemm(const call *c) {
	if (c->in[0]->dims != 2 || c->in[1]->dims != 2)
		return "gemm takes 2 dimensions; use batch_gemm for batches";
	return check_batch(c);
}

// multiply computes one matrix of the batch.
static void multiply(const call *c, const uint64_t *batch, float *out) {
	const gemm_params t = params_of(c);
	const operand *a = c->in[0], *b = c->in[1], *o = c->out[0];
	matmul p = {.a = a, .b = b, .m = o->sizes[1], .n = o->sizes[0], .k = a->sizes[t.transpose_a], .gaudi3 = c->gaudi3, .backwards = c->backwards, .out = out};
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

typedef struct {
	const call *c;
	uint64_t at; // of the matrix in the output
	float *out;
	void (*finish)(const call *c, float *out); // epilogue of one row, or NULL
} rows;

static void store_rows(void *data, uint64_t from, uint64_t to) {
	const rows *r = data;
	const operand *o = r->c->out[0];
	const uint64_t n = o->sizes[0];
	for (uint64_t i = from; i < to; i++) {
		if (r->finish)
			r->finish(r->c, r->out + i * n);
		store(o, r->at + i * n, r->out + i * n, n, r->c->gaudi3); // an FP8 overflow becomes infinity: the engine saturates in inference only
	}
}

static void run_batch(const call *c, void (*finish)(const call *, float *)) {
	const operand *o = c->out[0];
	const uint64_t n = o->sizes[0] * o->sizes[1], *s = o->sizes;
	float *out = malloc(n * sizeof *out);
	for (uint64_t i = 0; i < s[2] * s[3] * s[4]; i++) {
		const uint64_t batch[] = {0, 0, i % s[2], i / s[2] % s[3], i / s[2] / s[3]};
		multiply(c, batch, out);
		parallel(o->sizes[1], 1 + SMALL / o->sizes[0], store_rows, &(rows){c, i * n, out, finish});
	}
	free(out);
}

static void run_gemm(const call *c) { run_batch(c, NULL); }

// fp8_gemm: [A, B, scale_inv of A, scale_inv of B], per-tensor. The vendor's kernel also
// takes per-row and per-column scales, a bias and an addend.
enum { SCALE_A = 2, SCALE_B };

static const operand *optional(const call *c, uint32_t i) { return i < c->ins ? c->in[i] : NULL; }

static const char *check_fp8_gemm(const call *c) {
	const char *reason = check_batch(c);
	if (reason)
		return reason;
	if (!is_fp8(c->in[0]->type))
		return "the operands must be FP8";
	if (c->ins == 3) // a single scale would be A's
		return "the kernel takes 2 or 4 inputs";
	for (uint32_t i = SCALE_A; i <= SCALE_B; i++)
		if (optional(c, i) && elements(c->in[i]) != 1)
			return "a scale must have one element in the stand-in";
	return c->out[0]->dims > 2 ? "fp8_gemm takes no batches in the stand-in" : NULL;
}

static void finish_fp8_gemm(const call *c, float *out) {
	for (uint32_t i = SCALE_A; i <= SCALE_B; i++) {
		if (!optional(c, i))
			continue;
		const float scale = element(c->in[i], 0, c->gaudi3);
		for (uint64_t j = 0; j < c->out[0]->sizes[0]; j++)
			out[j] *= scale;
	}
}

static void run_fp8_gemm(const call *c) { run_batch(c, finish_fp8_gemm); }

const kernel gemm_kernels[] = {
	{"gemm", 0, "NN", "N", {OPTIONAL_PARAMS, 2}, check_gemm, run_gemm, NULL},
	{"batch_gemm", 0, "NN", "N", {OPTIONAL_PARAMS, 2}, check_batch, run_gemm, NULL},
	{"fp8_gemm", F32 | BF16, "88?GG", "T", {OPTIONAL_PARAMS, 2}, check_fp8_gemm, run_fp8_gemm, NULL},
	{0},
};
