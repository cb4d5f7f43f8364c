//go:build ignore

// Stand-in for libSynapse.so: kernels of layers, which compute in F32 and sum in float64.

#define _GNU_SOURCE
#include "libsynapse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// row_of loads a row of an operand.
static float *row_of(float *buffer, const operand *o, uint64_t row, bool gaudi3) {
	load(buffer, o, row * o->sizes[0], o->sizes[0], gaudi3);
	return buffer;
}

// rms_norm_ex_fwd: [x, gamma] -> [y, inverse rms]. Only two sizes of the parameter structure
// are known; with any other, eps is the kernel's default.
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
	if (x->dims < 3) // wrong results before SynapseAI 1.21
		return "the input needs at least three dimensions";
	if (gamma->sizes[0] != x->sizes[0] || elements(gamma) != x->sizes[0])
		return "the sizes of gamma and a row differ";
	if (inverse && (inverse->dims != x->dims || inverse->sizes[0] != 1 || elements(inverse) * x->sizes[0] != elements(x)))
		return "the inverse rms must have one element per row";
	return NULL;
}

static const char *check_norm(const call *c) {
	if (!same_sizes(c->in[0], c->out[0]))
		return "the sizes of output and input differ";
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
		return "the sizes of gradients and input differ";
	if (!same_sizes(c->out[1], c->in[NORM_GAMMA]))
		return "the sizes of gamma and its gradient differ";
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

const kernel layer_kernels[] = {
	{"rms_norm_ex_fwd", F32 | BF16, "TG", "T?G", {ANY_PARAMS}, check_norm, run_norm, NULL},
	{"rms_norm_ex_bwd", F32 | BF16, "TTGG", "TG", {16}, check_norm_grad, run_norm_grad, NULL},
	{0},
};
