//go:build ignore

// Stand-in for libSynapse.so: conversions between types, with and without a scale. On
// overflow, a plain cast gives infinity, and convert_to_fp8 saturates.

#define _GNU_SOURCE
#include "libsynapse.h"

#pragma GCC optimize("O3")

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1024 };

// rounding_of returns a CastF32RoundMode_t, the first field of ns_CastKernel::Params.
static int rounding_of(const call *c) { return c->params_size ? *(const int32_t *)c->params : TO_NEAREST; }

static const char *check_rounding(const call *c) {
	const int mode = rounding_of(c);
	return mode == TO_NEAREST || mode == STOCHASTIC ? NULL : "the rounding mode is not implemented";
}

static bool is_float(uint32_t type) { return type & (F32 | BF16 | F16 | E4M3 | E5M2); }

// Plain casts.

static const char *check_cast(const call *c) {
	if (!same_sizes(c->in[0], c->out[0]))
		return "the sizes of output and input differ";
	return check_rounding(c);
}

// split runs a task on n elements: sequentially for stochastic rounding, which draws random
// bits in order.
static void split(const call *c, uint64_t n, task run, void *data) {
	if (rounding_of(c) == STOCHASTIC)
		run(data, 0, n);
	else
		parallel(n, SMALL, run, data);
}

static void cast_range(void *data, uint64_t from, uint64_t to) {
	const call *c = data;
	const operand *a = c->in[0], *o = c->out[0];
	for (uint64_t at = from; at < to; at += CHUNK) {
		float x[CHUNK];
		const uint64_t n = to - at < CHUNK ? to - at : CHUNK;
		load(x, a, at, n, c->gaudi3);
		if (o->type == F32 || !is_float(o->type))
			store(o, at, x, n, c->gaudi3);
		else
			encode(o, at, x, n, c->gaudi3, rounding_of(c), false, c->random);
	}
}

static void run_cast(const call *c) { split(c, elements(c->in[0]), cast_range, (void *)c); }

// Conversions to and from FP8. amax is that of the unscaled input. A scale has one element;
// the vendor's kernel also broadcasts others.

static const char *check_scale(const operand *s) { return !s || elements(s) == 1 ? NULL : "a scale must have one element in the stand-in"; }

static const operand *optional(const operand *const *list, uint32_t n, uint32_t i) { return i < n ? list[i] : NULL; }

// codes_of returns the number of FP8 outputs: 2 for the hybrid.
static uint32_t codes_of(const call *c) { return c->kernel->detail ? 2 : 1; }

static const char *check_convert(const call *c) {
	const operand *x = c->in[0];
	const uint32_t codes = codes_of(c);
	for (uint32_t i = 0; i < codes; i++)
		if (!same_sizes(x, c->out[i]))
			return "the sizes of output and input differ";
	for (uint32_t i = 1; i < c->ins; i++) {
		const char *reason = check_scale(c->in[i]);
		if (reason)
			return reason;
	}
	const operand *amax = optional((const operand *const *)c->out, c->outs, codes);
	if (amax && elements(amax) != 1)
		return "amax must have one element";
	return check_rounding(c);
}

static const char *check_from(const call *c) {
	if (!same_sizes(c->in[0], c->out[0]))
		return "the sizes of output and input differ";
	return check_scale(optional(c->in, c->ins, 1));
}

// scale_run multiplies n elements by a scale; NULL is 1.
static void scale_run(float *to, const float *from, const operand *s, uint64_t n, bool gaudi3) {
	const float scale = s ? element(s, 0, gaudi3) : 1;
	for (uint64_t i = 0; i < n; i++)
		to[i] = from[i] * scale;
}

// amax_bits returns the bits of the largest magnitude. As integers, magnitudes have the same
// order, with NaN last.
WIDE static uint32_t amax_bits(const float *x, uint64_t n, bool drop_nan) {
	uint32_t amax = 0;
	for (uint64_t i = 0; i < n; i++) {
		uint32_t bits;
		memcpy(&bits, &x[i], sizeof bits);
		bits &= 0x7fffffff;
		bits = drop_nan && bits > 0x7f800000 ? 0 : bits;
		amax = bits > amax ? bits : amax;
	}
	return amax;
}

typedef struct {
	const call *c;
	atomic_uint amax; // bits
} conversion;

static void convert_range(void *data, uint64_t from, uint64_t to) {
	conversion *v = data;
	const call *c = v->c;
	const operand *x = c->in[0];
	for (uint64_t at = from; at < to; at += CHUNK) {
		float raw[CHUNK], scaled[CHUNK];
		const uint64_t n = to - at < CHUNK ? to - at : CHUNK;
		load(raw, x, at, n, c->gaudi3);
		const uint32_t amax = amax_bits(raw, n, c->drop_nan);
		for (uint32_t old = v->amax; amax > old && !atomic_compare_exchange_weak(&v->amax, &old, amax);)
			;
		for (uint32_t o = 0; o < codes_of(c); o++) {
			scale_run(scaled, raw, optional(c->in, c->ins, 1 + o), n, c->gaudi3);
			encode(c->out[o], at, scaled, n, c->gaudi3, rounding_of(c), true, c->random);
		}
	}
}

static void run_convert(const call *c) {
	conversion v = {.c = c};
	split(c, elements(c->in[0]), convert_range, &v);
	const uint32_t bits = v.amax;
	float amax;
	memcpy(&amax, &bits, sizeof amax);
	if (optional((const operand *const *)c->out, c->outs, codes_of(c)))
		store(c->out[codes_of(c)], 0, &amax, 1, c->gaudi3);
}

static void restore_range(void *data, uint64_t from, uint64_t to) {
	const call *c = data;
	const operand *x = c->in[0];
	for (uint64_t at = from; at < to; at += CHUNK) {
		float raw[CHUNK], scaled[CHUNK];
		const uint64_t n = to - at < CHUNK ? to - at : CHUNK;
		load(raw, x, at, n, c->gaudi3);
		scale_run(scaled, raw, optional(c->in, c->ins, 1), n, c->gaudi3);
		store(c->out[0], at, scaled, n, c->gaudi3);
	}
}

static void run_from(const call *c) { parallel(elements(c->in[0]), SMALL, restore_range, (void *)c); }

static const bool hybrid = true;

const kernel cast_kernels[] = {
	{"cast", F32 | BF16 | F16 | E4M3 | E5M2 | I8 | I32, "R", "T", {OPTIONAL_PARAMS, 4}, check_cast, run_cast, NULL},
	{"convert_to_fp8", F32 | BF16, "T?G", "8?F", {4}, check_convert, run_convert, NULL},
	{"convert_to_fp8_hybrid", F32 | BF16, "T?GG", "eh?F", {4}, check_convert, run_convert, &hybrid},
	{"convert_from_fp8", F32 | BF16, "8?G", "T", {0}, check_from, run_from, NULL},
	{0},
};
