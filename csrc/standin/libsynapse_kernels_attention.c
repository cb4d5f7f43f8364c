//go:build ignore

// Stand-in for libSynapse.so: attention that recomputes its probabilities in the backward
// pass. q is [width, time, heads, batch], with an optional fifth dimension; k and v have
// the same dimensions, with their own time. Batch dimensions of size 1 are broadcast: so
// heads share keys and values.
//
// Scores and sums are F32. The maximum score m and the operands of GEMMs are rounded to the
// operands' type. Where the real kernel rounds is not published.

#define _GNU_SOURCE
#include "libsynapse.h"

#pragma GCC optimize("O3")

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ns_Sdpa::ParamsV3.
typedef struct {
	float scale;
	bool causal;
	struct {
		float ratio;
		uint32_t seed;
		bool no_mask;
	} dropout;
	bool inference;
	int32_t softmax_mode;
	uint32_t flags;
} sdpa_params;

_Static_assert(sizeof(sdpa_params) == 32 && offsetof(sdpa_params, inference) == 20, "ns_Sdpa::ParamsV3");

enum { Q, K, V, MASK };                                  // inputs of the forward pass; the stand-in takes no further ones
enum { DO, GRAD_Q, GRAD_K, GRAD_V, GRAD_MASK, M, LINV }; // of the backward pass
enum { OUT, OUT_M, OUT_LINV, OUT_SEED };

// has_sizes returns whether an operand has the given sizes, and q's from dimension 2; with
// broadcast, 1 is valid there, too.
static bool has_sizes(const operand *o, uint64_t inner, uint64_t rows, const operand *q, bool broadcast) {
	if (o->dims != q->dims || o->sizes[0] != inner || o->sizes[1] != rows)
		return false;
	for (int d = 2; d < MAX_DIMS; d++)
		if (o->sizes[d] != q->sizes[d] && !(broadcast && o->sizes[d] == 1))
			return false;
	return true;
}

static const char *check_common(const call *c, const operand *q, const operand *k, const operand *v, const operand *mask) {
	const sdpa_params *p = c->params;
	const uint64_t time = k->sizes[1];
	if (q->dims < 3)
		return "q has fewer than 3 dimensions";
	if (!has_sizes(k, q->sizes[0], time, q, true) || !has_sizes(v, v->sizes[0], time, q, true))
		return "the sizes of k or v cannot be broadcast to q's";
	if (mask && p->causal)
		return "a mask excludes causal attention";
	if (mask && (mask->type != q->type || !has_sizes(mask, time, q->sizes[1], q, true)))
		return "the type or the sizes of the mask are not those of scores";
	if (p->causal && q->sizes[1] != time)
		return "causal attention needs equal times of q and k";
	if (p->dropout.ratio != 0 || p->softmax_mode || p->flags)
		return "dropout, fast softmax and FP8 are not implemented";
	return NULL;
}

static const operand *optional(const call *c, uint32_t i) { return i < c->ins ? c->in[i] : NULL; }

static const char *check_forward(const call *c) {
	const operand *q = c->in[Q], *v = c->in[V];
	const sdpa_params *p = c->params;
	const char *reason = check_common(c, q, c->in[K], v, optional(c, MASK));
	if (reason)
		return reason;
	for (uint32_t i = MASK + 1; i < c->ins; i++)
		if (c->in[i])
			return "seeds and scales are not implemented";
	if (!has_sizes(c->out[OUT], v->sizes[0], q->sizes[1], q, false))
		return "the sizes of output and q differ";
	if (p->inference)
		return c->outs > 1 && c->out[OUT_M] ? "inference has no outputs m and linv" : NULL;
	if (c->outs < OUT_SEED || !c->out[OUT_M] || !c->out[OUT_LINV])
		return "training needs outputs m and linv";
	if (!has_sizes(c->out[OUT_M], 1, q->sizes[1], q, false) || !has_sizes(c->out[OUT_LINV], 1, q->sizes[1], q, false))
		return "m and linv must have one element per row";
	return c->outs > OUT_SEED && c->out[OUT_SEED] ? "a seed without dropout" : NULL;
}

static const char *check_backward(const call *c) {
	const operand *q = c->in[GRAD_Q], *k = c->in[GRAD_K], *v = c->in[GRAD_V];
	if (!optional(c, M) || !optional(c, LINV))
		return "m or linv is missing";
	const char *reason = check_common(c, q, k, v, c->in[GRAD_MASK]);
	if (reason)
		return reason;
	if (!has_sizes(c->in[DO], v->sizes[0], q->sizes[1], q, false))
		return "the sizes of the gradient and the output differ";
	if (!has_sizes(c->in[M], 1, q->sizes[1], q, false) || !has_sizes(c->in[LINV], 1, q->sizes[1], q, false))
		return "m and linv must have one element per row";
	if (!same_sizes(c->out[0], q) || !same_sizes(c->out[1], k) || !same_sizes(c->out[2], v))
		return "the sizes of q, k or v and their gradients differ";
	return NULL;
}

static void transpose(float *to, const float *from, uint64_t rows, uint64_t columns) {
	for (uint64_t i = 0; i < rows; i++)
		for (uint64_t j = 0; j < columns; j++)
			to[j * rows + i] = from[i * columns + j];
}

// matrix_at returns the offset of the matrix at a batch index.
static uint64_t matrix_at(const operand *o, const uint64_t *batch) {
	uint64_t at = 0, stride = o->sizes[0] * o->sizes[1];
	for (int d = 2; d < MAX_DIMS; d++) {
		at += o->sizes[d] > 1 ? batch[d] * stride : 0;
		stride *= o->sizes[d];
	}
	return at;
}

// batches returns an operand's number of matrices.
static uint64_t batches(const operand *o) { return o->sizes[2] * o->sizes[3] * o->sizes[4]; }

static float *matrix(const operand *o, const uint64_t *batch, bool gaudi3) {
	const uint64_t n = o->sizes[0] * o->sizes[1];
	float *m = malloc(n * sizeof *m);
	load(m, o, matrix_at(o, batch), n, gaudi3);
	return m;
}

// round_to rounds values to an operand's type.
static void round_to(const operand *o, float *x, uint64_t n, bool gaudi3) {
	if (o->type == F32)
		return;
	operand rounded = {.type = o->type, .data = malloc(n * type_size(o->type))};
	store(&rounded, 0, x, n, gaudi3);
	load(x, &rounded, 0, n, gaudi3);
	free(rounded.data);
}

// scores returns the scores [time of q][time of k] plus the mask, -Inf where causality hides
// them.
static float *scores(const call *c, const operand *q, const operand *k, const operand *mask, const uint64_t *batch) {
	const sdpa_params *p = c->params;
	const uint64_t rows = q->sizes[1], columns = k->sizes[1], width = q->sizes[0];
	float *a = matrix(q, batch, c->gaudi3), *b = matrix(k, batch, c->gaudi3);
	float *transposed = malloc(width * columns * sizeof *transposed), *s = calloc(rows * columns, sizeof *s);
	transpose(transposed, b, columns, width);
	float *added = mask ? matrix(mask, batch, c->gaudi3) : NULL;
	add_matmul(s, a, transposed, rows, columns, width);
	for (uint64_t i = 0; i < rows; i++)
		for (uint64_t j = 0; j < columns; j++) {
			float *x = &s[i * columns + j];
			*x *= p->scale;
			if (added)
				*x += added[i * columns + j];
			if (p->causal && j > i)
				*x = -INFINITY;
		}
	free(a);
	free(b);
	free(transposed);
	free(added);
	return s;
}

// exponential returns e^(x - max), without a computation if x is masked.
static inline float exponential(float x, float max) { return x == -INFINITY && max > -INFINITY ? 0 : expf(x - max); }

// forward computes matrices [from, to) of the batch.
static void forward(void *data, uint64_t from, uint64_t to) {
	const call *c = data;
	const operand *q = c->in[Q], *k = c->in[K], *v = c->in[V], *o = c->out[OUT];
	const uint64_t rows = q->sizes[1], columns = k->sizes[1], width = v->sizes[0], *n = q->sizes;
	float *out = malloc(rows * width * sizeof *out);
	for (uint64_t i = from; i < to; i++) {
		const uint64_t batch[] = {0, 0, i % n[2], i / n[2] % n[3], i / n[2] / n[3]};
		float *s = scores(c, q, k, optional(c, MASK), batch), *values = matrix(v, batch, c->gaudi3);
		float *max = malloc(rows * sizeof *max), *inverse = malloc(rows * sizeof *inverse);
		for (uint64_t r = 0; r < rows; r++) {
			max[r] = -INFINITY;
			for (uint64_t j = 0; j < columns; j++)
				max[r] = s[r * columns + j] > max[r] ? s[r * columns + j] : max[r];
		}
		round_to(q, max, rows, c->gaudi3);
		for (uint64_t r = 0; r < rows; r++) {
			double sum = 0;
			for (uint64_t j = 0; j < columns; j++)
				sum += s[r * columns + j] = exponential(s[r * columns + j], max[r]);
			inverse[r] = 1 / sum;
		}
		round_to(q, s, rows * columns, c->gaudi3);
		memset(out, 0, rows * width * sizeof *out);
		add_matmul(out, s, values, rows, width, columns);
		for (uint64_t r = 0; r < rows; r++)
			for (uint64_t j = 0; j < width; j++)
				out[r * width + j] *= inverse[r];
		store(o, i * rows * width, out, rows * width, c->gaudi3);
		if (c->outs > OUT_LINV && c->out[OUT_M]) {
			store(c->out[OUT_M], i * rows, max, rows, c->gaudi3);
			store(c->out[OUT_LINV], i * rows, inverse, rows, c->gaudi3);
		}
		free(s);
		free(values);
		free(max);
		free(inverse);
	}
	free(out);
}

static void run_forward(const call *c) { parallel(batches(c->in[Q]), 1, forward, (void *)c); }

// add_gradients adds the gradients of one matrix of the batch to dq, dk and dv.
static void add_gradients(const call *c, const uint64_t *batch, uint64_t index, float *dq, float *dk, float *dv) {
	const operand *q = c->in[GRAD_Q], *k = c->in[GRAD_K], *v = c->in[GRAD_V];
	const sdpa_params *p = c->params;
	const uint64_t rows = q->sizes[1], columns = k->sizes[1], width = q->sizes[0], depth = v->sizes[0], cells = rows * columns;
	float *probability = scores(c, q, k, c->in[GRAD_MASK], batch), *slope = calloc(cells, sizeof *slope);
	float *transposed = malloc((cells > columns * depth ? cells : columns * depth) * sizeof *transposed);
	float *mq = matrix(q, batch, c->gaudi3), *mk = matrix(k, batch, c->gaudi3), *mv = matrix(v, batch, c->gaudi3), *grad = matrix(c->in[DO], batch, c->gaudi3);
	for (uint64_t r = 0; r < rows; r++) {
		const float max = element(c->in[M], index * rows + r, c->gaudi3), inverse = element(c->in[LINV], index * rows + r, c->gaudi3);
		for (uint64_t j = 0; j < columns; j++)
			probability[r * columns + j] = exponential(probability[r * columns + j], max) * inverse;
	}
	transpose(transposed, mv, columns, depth);
	add_matmul(slope, grad, transposed, rows, columns, depth);
	for (uint64_t r = 0; r < rows; r++) {
		double mean = 0;
		for (uint64_t j = 0; j < columns; j++)
			mean += (double)probability[r * columns + j] * slope[r * columns + j];
		for (uint64_t j = 0; j < columns; j++)
			slope[r * columns + j] = p->scale * probability[r * columns + j] * (slope[r * columns + j] - (float)mean);
	}
	round_to(q, probability, cells, c->gaudi3);
	round_to(q, slope, cells, c->gaudi3);
	transpose(transposed, probability, rows, columns);
	add_matmul(dv + matrix_at(v, batch), transposed, grad, columns, depth, rows);
	transpose(transposed, slope, rows, columns);
	add_matmul(dk + matrix_at(k, batch), transposed, mq, columns, width, rows);
	add_matmul(dq + matrix_at(q, batch), slope, mk, rows, width, columns);
	free(probability);
	free(slope);
	free(transposed);
	free(mq);
	free(mk);
	free(mv);
	free(grad);
}

typedef struct {
	const call *c;
	float *sums[3];
	bool split[MAX_DIMS]; // dimensions in which no keys or values are shared
} gradients;

// backward computes the gradients for indices [from, to) of the split dimensions, in the
// batch's order. Other indices write to other elements.
static void backward(void *data, uint64_t from, uint64_t to) {
	const gradients *g = data;
	const uint64_t *n = g->c->in[GRAD_Q]->sizes;
	for (uint64_t i = 0; i < batches(g->c->in[GRAD_Q]); i++) {
		const uint64_t batch[] = {0, 0, i % n[2], i / n[2] % n[3], i / n[2] / n[3]};
		uint64_t part = 0;
		for (int d = MAX_DIMS - 1; d >= 2; d--)
			part = g->split[d] ? part * n[d] + batch[d] : part;
		if (part >= from && part < to)
			add_gradients(g->c, batch, i, g->sums[0], g->sums[1], g->sums[2]);
	}
}

static void run_backward(const call *c) {
	const operand *q = c->in[GRAD_Q], *k = c->in[GRAD_K], *v = c->in[GRAD_V];
	gradients g = {.c = c};
	uint64_t parts = 1;
	for (int d = 2; d < MAX_DIMS; d++) {
		g.split[d] = k->sizes[d] == q->sizes[d] && v->sizes[d] == q->sizes[d];
		parts *= g.split[d] ? q->sizes[d] : 1;
	}
	for (int i = 0; i < 3; i++)
		g.sums[i] = calloc(elements(c->out[i]), sizeof *g.sums[i]);
	parallel(parts, 1, backward, &g);
	for (int i = 0; i < 3; i++) {
		store(c->out[i], 0, g.sums[i], elements(c->out[i]), c->gaudi3);
		free(g.sums[i]);
	}
}

const kernel attention_kernels[] = {
	{"sdpa_recomp_fwd", F32 | BF16, "TTT?TINNNNNNN", "T?TFI", {sizeof(sdpa_params)}, check_forward, run_forward, NULL},
	{"sdpa_recomp_bwd", F32 | BF16, "TTTT?TTFIT", "TTT", {sizeof(sdpa_params)}, check_backward, run_backward, NULL},
	{0},
};
