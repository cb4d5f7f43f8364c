//go:build ignore

// Stand-in for libSynapse.so: lookup of kernels by guid, and checks of all kernels.

#define _GNU_SOURCE
#include "libsynapse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const kernel *const tables[] = {elementwise_kernels, gemm_kernels, cast_kernels, layer_kernels, attention_kernels, data_kernels};

// suffix removes the last part of a guid and returns the type that it names, or 0.
static uint32_t suffix(char *guid) {
	static const struct {
		const char *name;
		uint32_t type;
	} names[] = {{"f32", F32}, {"bf16", BF16}, {"f16", F16}, {"hf8", E4M3}, {"f8", E5M2}, {"i8", I8}, {"i32", I32}};
	char *end = strrchr(guid, '_');
	for (size_t i = 0; end && i < sizeof names / sizeof *names; i++)
		if (!strcmp(end + 1, names[i].name)) {
			*end = 0;
			return names[i].type;
		}
	return 0;
}

static const kernel *find_named(const char *guid, uint32_t type) {
	for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
		for (const kernel *k = tables[i]; k->guid; k++)
			if (!strcmp(k->guid, guid) && (type ? (k->types & type) != 0 : k->types == 0))
				return k;
	return NULL;
}

const kernel *kernel_find(const char *guid, uint32_t *type, uint32_t *from) {
	*type = *from = 0;
	const kernel *k = find_named(guid, 0);
	if (k)
		return k;
	char *base = strdup(guid);
	*type = suffix(base);
	if (*type && !strncmp(base, "cast_", 5)) { // cast_f32_to_bf16
		char *to = strstr(base, "_to");
		if (to && !to[3]) {
			*to = 0;
			*from = suffix(base);
		}
	}
	k = *type ? find_named(base, *type) : NULL;
	if (k && !strcmp(k->guid, "cast") && !*from)
		k = NULL;
	free(base);
	return k;
}

// fits returns whether an operand has the type of a signature's letter. *any is the type of letter A;
// 0: not known yet.
static bool fits(const call *c, char letter, const operand *o, uint32_t *any) {
	const uint32_t type = o->type;
	switch (letter) {
	case 'T': return type == c->type;
	case 'R': return type == c->from;
	case 'F': return type == F32;
	case 'I': return type == I32;
	case '8': return type == E4M3 || type == E5M2;
	case 'h': return type == E4M3;
	case 'e': return type == E5M2;
	case 'G': return type == c->type || type == F32;
	case 'B': return type == I8;
	case 'A':
		if (!*any)
			*any = type;
		return type == *any;
	}
	return true; // N
}

static const char *check_side(const call *c, const char *signature, const operand *const *list, uint32_t n, bool output, uint32_t *any) {
	static char reason[128];
	const char *const side = output ? "output" : "input";
	bool optional = false;
	uint32_t i = 0;
	for (const char *s = signature; *s; s++) {
		if (*s == '?') {
			optional = true;
			continue;
		}
		const bool repeated = s[0] == '*';
		const char letter = repeated ? s[-1] : s[0];
		do {
			if (i >= n || !list[i]) {
				if (repeated && i >= n)
					break;
				if (!optional) {
					snprintf(reason, sizeof reason, "%s %u is missing", side, i);
					return reason;
				}
			} else if (!fits(c, letter, list[i], any)) {
				snprintf(reason, sizeof reason, "%s %u has the wrong type, %u", side, i, list[i]->type);
				return reason;
			}
			i++;
		} while (repeated && i < n);
	}
	if (i < n) {
		snprintf(reason, sizeof reason, "the kernel takes %u %ss, not %u", i, side, n);
		return reason;
	}
	return NULL;
}

static bool params_fit(const call *c) {
	for (size_t i = 0; i < sizeof c->kernel->params / sizeof *c->kernel->params; i++) {
		const uint16_t size = c->kernel->params[i];
		if (size == ANY_PARAMS || (size == OPTIONAL_PARAMS && !c->params_size) || (size && size == c->params_size))
			return true;
	}
	return !c->kernel->params[0] && !c->params_size;
}

const char *kernel_check(const call *c) {
	uint32_t any = 0;
	const char *reason = check_side(c, c->kernel->in, c->in, c->ins, false, &any);
	if (!reason)
		reason = check_side(c, c->kernel->out, (const operand *const *)c->out, c->outs, true, &any);
	if (!reason && !params_fit(c))
		reason = "wrong size of the parameter structure";
	return reason ? reason : c->kernel->check ? c->kernel->check(c) : NULL;
}
