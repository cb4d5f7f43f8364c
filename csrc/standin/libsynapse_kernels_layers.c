//go:build ignore

// Stand-in for libSynapse.so: kernels of whole layers, which compute in F32 and sum in
// float64.

#define _GNU_SOURCE
#include "libsynapse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// A row of an operand as floats.
static float *row_of(float *buffer, const operand *o, uint64_t row, bool gaudi3) {
	load(buffer, o, row * o->sizes[0], o->sizes[0], gaudi3);
	return buffer;
}

// rms_norm_ex_fwd: [x, gamma] -> [y, inverse rms]. Of the parameter structures, only
// these sizes are known; with any other eps is what the kernel thinks fit.
typedef struct {
	bool eps_valid;
	float eps;
} norm_params;

enum { NORM_SHORT = 8, NORM_LONG = 24 };

static float eps_of(const call *c) {
	norm_params p = {0};
	if (c->params_size == NORM_SHORT || c->params_size == NORM_LONG)
		memcpy(&p, c->params, sizeof p);
	return p.eps_valid ? p.eps : 1e-5f;
}

static const char *check_norm_sizes(const operand *x, const operand *gamma, const operand *inverse) {
	if (x->dims < 3) // before SynapseAI 1.21 it computes something else
		return "rows have at least three dimensions";
	if (gamma->sizes[0] != x->sizes[0] || elements(gamma) != x->sizes[0])
		return "gamma has another size than a row";
	if (inverse && (inverse->dims != x->dims || inverse->sizes[0] != 1 || elements(inverse) * x->sizes[0] != elements(x)))
		return "the inverse rms has not one element for each row";
	return NULL;
}

static const char *check_norm(const call *c) {
	if (!same_sizes(c->in[0], c->out[0]))
		return "the output has other sizes than the input";
	return check_norm_sizes(c->in[0], c->in[1], c->outs > 1 ? c->out[1] : NULL);
}

static void run_norm(const call *c) {
	const operand *x = c->in[0];
	const uint64_t n = x->sizes[0], rows = elements(x) / n;
	float *row = malloc(n * sizeof *row), *gamma = malloc(n * sizeof *gamma);
	load(gamma, c->in[1], 0, n, c->gaudi3);
	for (uint64_t i = 0; i < rows; i++) {
		row_of(row, x, i, c->gaudi3);
		double sum = 0;
		for (uint64_t j = 0; j < n; j++)
			sum += (double)row[j] * row[j];
		const float inverse = 1 / sqrtf(sum / n + eps_of(c));
		for (uint64_t j = 0; j < n; j++)
			row[j] = row[j] * inverse * gamma[j];
		store(c->out[0], i * n, row, n, c->gaudi3);
		if (c->outs > 1 && c->out[1])
			store(c->out[1], i, &inverse, 1, c->gaudi3);
	}
	free(row);
	free(gamma);
}

// rms_norm_ex_bwd: [gradient of y, x, gamma, inverse rms] -> [gradient of x, of gamma].
enum { NORM_GRAD, NORM_X, NORM_GAMMA, NORM_INVERSE };

static const char *check_norm_grad(const call *c) {
	const operand *x = c->in[NORM_X];
	if (!same_sizes(c->in[NORM_GRAD], x) || !same_sizes(c->out[0], x))
		return "gradients have other sizes than the input";
	if (!same_sizes(c->out[1], c->in[NORM_GAMMA]))
		return "gamma's gradient has another size than gamma";
	return check_norm_sizes(x, c->in[NORM_GAMMA], c->in[NORM_INVERSE]);
}

static void run_norm_grad(const call *c) {
	const operand *x = c->in[NORM_X];
	const uint64_t n = x->sizes[0], rows = elements(x) / n;
	float *buffers = malloc(4 * n * sizeof *buffers), *dy = buffers, *in = buffers + n, *gamma = in + n, *out = gamma + n;
	double *sums = calloc(n, sizeof *sums);
	load(gamma, c->in[NORM_GAMMA], 0, n, c->gaudi3);
	for (uint64_t i = 0; i < rows; i++) {
		const float inverse = element(c->in[NORM_INVERSE], i, c->gaudi3);
		row_of(dy, c->in[NORM_GRAD], i, c->gaudi3);
		row_of(in, x, i, c->gaudi3);
		double mean = 0;
		for (uint64_t j = 0; j < n; j++) {
			const float normed = in[j] * inverse;
			mean += (double)dy[j] * gamma[j] * normed / n;
			sums[j] += (double)dy[j] * normed;
		}
		for (uint64_t j = 0; j < n; j++)
			out[j] = inverse * (dy[j] * gamma[j] - in[j] * inverse * (float)mean);
		store(c->out[0], i * n, out, n, c->gaudi3);
	}
	for (uint64_t j = 0; j < n; j++)
		out[j] = sums[j];
	store(c->out[1], 0, out, n, c->gaudi3);
	free(buffers);
	free(sums);
}

// rotary_pos_embedding: [x, sin, cos, positions]. Tables are broadcast to x, or, with
// positions, looked up: dimension 1 of x is time, and of the tables the position.
typedef struct {
	uint32_t offset;
	int32_t mode;
} rope_params;

enum { BLOCKWISE, PAIRWISE };

static const operand *positions_of(const call *c) { return c->ins > 3 ? c->in[3] : NULL; }

static const char *check_table(const operand *table, const operand *x, const operand *positions) {
	if (table->sizes[0] != x->sizes[0])
		return "a table has other rows than the input";
	if (positions)
		return elements(table) == table->sizes[0] * table->sizes[1] ? NULL : "with positions, a table has two dimensions";
	for (int d = 1; d < MAX_DIMS; d++)
		if (table->sizes[d] != 1 && table->sizes[d] != x->sizes[d])
			return "a table does not broadcast to the input";
	return NULL;
}

static const char *check_rope(const call *c) {
	const operand *x = c->in[0], *positions = positions_of(c);
	const rope_params *p = c->params;
	if (!same_sizes(x, c->out[0]))
		return "the output has other sizes than the input";
	if (x->sizes[0] % 2 || p->offset || (p->mode != BLOCKWISE && p->mode != PAIRWISE))
		return "an odd row, an offset, or an unknown mode";
	if (positions) // {time} or {time, batch}
		for (uint32_t d = 0; d < positions->dims; d++)
			if (positions->sizes[d] != 1 && positions->sizes[d] != x->sizes[d ? x->dims - 1 : 1])
				return "positions have other sizes than time and batch";
	const char *reason = check_table(c->in[1], x, positions);
	return reason ? reason : check_table(c->in[2], x, positions);
}

// table_row is which row of a table belongs to a row of x, whose index is given.
static uint64_t table_row(const operand *table, const operand *x, const operand *positions, const uint64_t *index) {
	if (positions) {
		const uint64_t time = positions->sizes[0] > 1 ? index[1] : 0, batch = positions->sizes[1] > 1 ? index[x->dims - 1] : 0;
		const int32_t at = ((const int32_t *)positions->data)[batch * positions->sizes[0] + time];
		if (at < 0 || (uint64_t)at >= table->sizes[1]) {
			complain("rotary_pos_embedding: position %d of %lu", at, (unsigned long)table->sizes[1]);
			return 0;
		}
		return at;
	}
	uint64_t row = 0, stride = 1;
	for (int d = 1; d < MAX_DIMS; d++) {
		row += table->sizes[d] > 1 ? index[d] * stride : 0;
		stride *= table->sizes[d];
	}
	return row;
}

static void run_rope(const call *c) {
	const bool backward = c->kernel->detail != NULL;
	const operand *x = c->in[0], *positions = positions_of(c);
	const rope_params *p = c->params;
	const uint64_t n = x->sizes[0], *s = x->sizes;
	float *buffers = malloc(4 * n * sizeof *buffers), *in = buffers, *sine = in + n, *cosine = sine + n, *out = cosine + n;
	for (uint64_t row = 0; row < elements(x) / n; row++) {
		const uint64_t index[] = {0, row % s[1], row / s[1] % s[2], row / s[1] / s[2] % s[3], row / s[1] / s[2] / s[3]};
		row_of(in, x, row, c->gaudi3);
		row_of(sine, c->in[1], table_row(c->in[1], x, positions, index), c->gaudi3);
		row_of(cosine, c->in[2], table_row(c->in[2], x, positions, index), c->gaudi3);
		for (uint64_t i = 0; i < n / 2; i++) {
			const uint64_t a = p->mode == BLOCKWISE ? i : 2 * i, b = p->mode == BLOCKWISE ? i + n / 2 : 2 * i + 1;
			if (backward) {
				out[a] = in[a] * cosine[a] + in[b] * sine[b];
				out[b] = in[b] * cosine[b] - in[a] * sine[a];
			} else {
				out[a] = in[a] * cosine[a] - in[b] * sine[a];
				out[b] = in[b] * cosine[b] + in[a] * sine[b];
			}
		}
		store(c->out[0], row * n, out, n, c->gaudi3);
	}
	free(buffers);
}

// softmax_fwd and logsoftmax_fwd, along any dimension: ns_Softmax::Params.

static const char *check_softmax(const call *c) {
	if (!same_sizes(c->in[0], c->out[0]))
		return "the output has other sizes than the input";
	return *(const uint32_t *)c->params < c->in[0]->dims ? NULL : "there is no such dimension";
}

static void run_softmax(const call *c) {
	const bool logarithm = c->kernel->detail != NULL;
	const operand *x = c->in[0];
	const uint32_t dim = *(const uint32_t *)c->params;
	const uint64_t n = x->sizes[dim];
	uint64_t inner = 1;
	for (uint32_t d = 0; d < dim; d++)
		inner *= x->sizes[d];
	for (uint64_t i = 0; i < elements(x) / n; i++) {
		const uint64_t first = i / inner * inner * n + i % inner;
		float most = -INFINITY;
		double sum = 0;
		for (uint64_t j = 0; j < n; j++) {
			const float v = element(x, first + j * inner, c->gaudi3);
			most = v > most || v != v ? v : most;
		}
		for (uint64_t j = 0; j < n; j++)
			sum += expf(element(x, first + j * inner, c->gaudi3) - most);
		for (uint64_t j = 0; j < n; j++) {
			const float v = element(x, first + j * inner, c->gaudi3) - most;
			const float y = logarithm ? v - (float)log(sum) : expf(v) / (float)sum;
			store(c->out[0], first + j * inner, &y, 1, c->gaudi3);
		}
	}
}

static const bool yes = true;

const kernel layer_kernels[] = {
	{"rms_norm_ex_fwd", F32 | BF16, "TG", "T?G", {ANY_PARAMS}, check_norm, run_norm, NULL},
	{"rms_norm_ex_bwd", F32 | BF16, "TTGG", "TG", {16, 20}, check_norm_grad, run_norm_grad, NULL},
	{"rotary_pos_embedding_fwd", F32 | BF16, "TGG?I", "T", {sizeof(rope_params)}, check_rope, run_rope, NULL},
	{"rotary_pos_embedding_bwd", F32 | BF16, "TGG?I", "T", {sizeof(rope_params)}, check_rope, run_rope, &yes},
	{"softmax_fwd", F32 | BF16, "T", "T", {4, 24}, check_softmax, run_softmax, NULL},
	{"logsoftmax_fwd", F32 | BF16, "T", "T", {4, 24}, check_softmax, run_softmax, &yes},
	{0},
};
