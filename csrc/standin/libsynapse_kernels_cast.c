//go:build ignore

// Stand-in for libSynapse.so: conversions between types, with and without a scale.
// What is too large becomes infinity in a plain cast, unless it is told to clip, and
// the largest number in convert_to_fp8.

#define _GNU_SOURCE
#include "libsynapse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1024, CLIP = 1 };

// ns_CastKernel::ParamsV3; shorter structures leave the rest out.
typedef struct {
	int32_t round_mode;
	uint32_t seed;
	int32_t saturation;
} cast_params;

static cast_params params_of(const call *c) {
	cast_params p = {0};
	if (c->params_size)
		memcpy(&p, c->params, c->params_size < sizeof p ? c->params_size : sizeof p);
	if (p.round_mode == DEFAULT_ROUNDING)
		p.round_mode = TO_NEAREST;
	return p;
}

static const char *check_rounding(const call *c) {
	const int mode = c->params_size ? *(const int32_t *)c->params : TO_NEAREST;
	const bool known = mode == TO_NEAREST || mode == STOCHASTIC || mode == TOWARD_ZERO || mode == DEFAULT_ROUNDING;
	return known ? NULL : "a rounding mode that the stand-in has not";
}

static bool is_float(uint32_t type) { return type & (F32 | BF16 | F16 | E4M3 | E5M2); }

static void put(const operand *o, uint64_t at, uint32_t code) {
	if (type_size(o->type) == 1)
		((uint8_t *)o->data)[at] = code;
	else
		((uint16_t *)o->data)[at] = code;
}

// Plain casts.

static const char *check_cast(const call *c) {
	if (!same_sizes(c->in[0], c->out[0]))
		return "the output has other sizes than the input";
	return check_rounding(c);
}

static void run_cast(const call *c) {
	const cast_params p = params_of(c);
	const operand *a = c->in[0], *o = c->out[0];
	const bool plain = o->type == F32 || !is_float(o->type) || (p.round_mode == TO_NEAREST && p.saturation != CLIP);
	for (uint64_t at = 0, all = elements(a); at < all; at += CHUNK) {
		float x[CHUNK];
		const uint64_t n = all - at < CHUNK ? all - at : CHUNK;
		if (a->type == I32 && o->type == I32) {
			memcpy((int32_t *)o->data + at, (int32_t *)a->data + at, n * sizeof(int32_t));
			continue;
		}
		load(x, a, at, n, c->gaudi3);
		if (plain)
			store(o, at, x, n, c->gaudi3);
		else
			for (uint64_t i = 0; i < n; i++)
				put(o, at + i, encode(o->type, c->gaudi3, x[i], p.round_mode, p.saturation == CLIP, c->random));
	}
}

// Conversions to and from FP8. amax is of the input, before it is scaled. A scale has
// one element, or is broadcast.

static const char *check_scale(const operand *s, const operand *x) {
	if (!s)
		return NULL;
	for (int d = 0; d < MAX_DIMS; d++)
		if (s->sizes[d] != 1 && s->sizes[d] != x->sizes[d])
			return "a scale does not broadcast to the input";
	return NULL;
}

static const operand *optional(const operand *const *list, uint32_t n, uint32_t i) { return i < n ? list[i] : NULL; }

static const char *check_convert(const call *c) {
	const operand *x = c->in[0];
	const uint32_t codes = c->kernel->detail ? 2 : 1; // the hybrid writes both formats
	for (uint32_t i = 0; i < codes; i++)
		if (!same_sizes(x, c->out[i]))
			return "the output has other sizes than the input";
	for (uint32_t i = 1; i < c->ins; i++) {
		const char *reason = check_scale(c->in[i], x);
		if (reason)
			return reason;
	}
	const operand *amax = optional((const operand *const *)c->out, c->outs, codes);
	if (amax && elements(amax) != 1)
		return "amax is one element";
	return check_rounding(c);
}

static const char *check_from(const call *c) {
	if (!same_sizes(c->in[0], c->out[0]))
		return "the output has other sizes than the input";
	return check_scale(optional(c->in, c->ins, 1), c->in[0]);
}

// factor is the element of a scale that belongs to element at of x.
static float factor(const operand *s, const operand *x, uint64_t at, bool gaudi3) {
	uint64_t to = 0, stride = 1;
	for (int d = 0; d < MAX_DIMS; d++) {
		to += s->sizes[d] > 1 ? at % x->sizes[d] * stride : 0;
		at /= x->sizes[d];
		stride *= s->sizes[d];
	}
	return element(s, to, gaudi3);
}

// scale_run multiplies n elements of x from at on.
static void scale_run(float *to, const float *from, const operand *s, const operand *x, uint64_t at, uint64_t n, bool gaudi3) {
	const bool one = !s || elements(s) == 1;
	const float all = !s ? 1 : one ? element(s, 0, gaudi3) : 0;
	for (uint64_t i = 0; i < n; i++)
		to[i] = from[i] * (one ? all : factor(s, x, at + i, gaudi3));
}

static void run_convert(const call *c) {
	const cast_params p = params_of(c);
	const operand *x = c->in[0];
	const uint32_t codes = c->kernel->detail ? 2 : 1;
	float amax = 0;
	for (uint64_t at = 0, all = elements(x); at < all; at += CHUNK) {
		float raw[CHUNK], scaled[CHUNK];
		const uint64_t n = all - at < CHUNK ? all - at : CHUNK;
		load(raw, x, at, n, c->gaudi3);
		for (uint64_t i = 0; i < n; i++) {
			const float a = fabsf(raw[i]);
			if (a > amax || (a != a && !c->drop_nan))
				amax = a;
		}
		for (uint32_t o = 0; o < codes; o++) {
			scale_run(scaled, raw, optional(c->in, c->ins, 1 + o), x, at, n, c->gaudi3);
			for (uint64_t i = 0; i < n; i++)
				put(c->out[o], at + i, encode(c->out[o]->type, c->gaudi3, scaled[i], p.round_mode, true, c->random));
		}
	}
	if (optional((const operand *const *)c->out, c->outs, codes))
		store(c->out[codes], 0, &amax, 1, c->gaudi3);
}

static void run_from(const call *c) {
	const operand *x = c->in[0];
	for (uint64_t at = 0, all = elements(x); at < all; at += CHUNK) {
		float raw[CHUNK], scaled[CHUNK];
		const uint64_t n = all - at < CHUNK ? all - at : CHUNK;
		load(raw, x, at, n, c->gaudi3);
		scale_run(scaled, raw, optional(c->in, c->ins, 1), x, at, n, c->gaudi3);
		store(c->out[0], at, scaled, n, c->gaudi3);
	}
}

static const bool hybrid = true;

const kernel cast_kernels[] = {
	{"cast", F32 | BF16 | F16 | E4M3 | E5M2 | I8 | U8 | I16 | I32, "R", "T", {OPTIONAL_PARAMS, 4, 8, 12}, check_cast, run_cast, NULL},
	{"convert_to_fp8", F32 | BF16, "T?G", "8?F", {4, 8, 12}, check_convert, run_convert, NULL},
	{"convert_to_fp8_hybrid", F32 | BF16, "T?GG", "eh?F", {4, 8, 12}, check_convert, run_convert, &hybrid},
	{"convert_from_fp8", F32 | BF16, "8?G", "T", {OPTIONAL_PARAMS, 4, 8, 12}, check_from, run_from, NULL},
	{0},
};
