//go:build ignore

// Stand-in for libSynapse.so: execution of HCCL's operations. In a collective every rank
// sends to every other. Sums are in ascending order of ranks, in F32 for floats.

#include "libsynapse_hccl.h"

#include <stdlib.h>
#include <string.h>

uint32_t element_type(uint32_t type) {
	switch (type) {
	case HCCL_I32: return I32;
	case HCCL_U32: return U32;
	case HCCL_F16: return F16;
	case HCCL_F32: return F32;
	case HCCL_BF16: return BF16;
	}
	return 0;
}

uint64_t bytes_from(const op *o) {
	const uint64_t bytes = o->count * type_size(element_type(o->type));
	if (o->kind == BROADCAST && (int)o->root != o->comm->rank)
		return 0;
	return o->kind == REDUCE_SCATTER ? bytes * o->comm->ranks : bytes;
}

uint64_t bytes_to(const op *o) {
	const uint64_t bytes = o->count * type_size(element_type(o->type));
	return o->kind == ALL_GATHER ? bytes * o->comm->ranks : bytes;
}

static float reduced(uint32_t reduction, float a, float b) {
	return reduction == SUM ? a + b : b > a || b != b ? b : a;
}

static int64_t reduced_integer(uint32_t reduction, int64_t a, int64_t b) {
	return reduction == SUM ? a + b : b > a ? b : a;
}

// reduce reduces the ranks' parts, which are consecutive in memory.
static void reduce(void *to, const unsigned char *parts, uint64_t n, const op *o) {
	const uint32_t type = element_type(o->type);
	const uint64_t bytes = n * type_size(type);
	const operand out = {.type = type, .data = to};
	for (uint64_t i = 0; i < n; i++) {
		if (type == I32 || type == U32) {
			int64_t sum = 0;
			for (int r = 0; r < o->comm->ranks; r++) {
				const unsigned char *p = parts + r * bytes + i * 4;
				const int64_t x = type == I32 ? *(const int32_t *)p : (int64_t) *(const uint32_t *)p;
				sum = r ? reduced_integer(o->reduction, sum, x) : x;
			}
			((uint32_t *)to)[i] = sum;
			continue;
		}
		float sum = 0;
		for (int r = 0; r < o->comm->ranks; r++) {
			const operand part = {.type = type, .data = (void *)(parts + r * bytes)};
			const float x = element(&part, i, false);
			sum = r ? reduced(o->reduction, sum, x) : x;
		}
		store(&out, i, &sum, 1, false);
	}
}

// run_collective sends the rank's data to every other rank and combines what it receives.
static bool run_collective(const op *o, unsigned char *from, unsigned char *to) {
	comm *c = o->comm;
	const uint64_t part = o->count * type_size(element_type(o->type)) / (o->kind == ALL_TO_ALL ? c->ranks : 1);
	unsigned char *parts = malloc(part * c->ranks + 1);
	message messages[2 * MAX_RANKS];
	uint32_t n = 0;
	const head h = {o->kind, o->type, o->reduction, o->root, c->done++, part};
	for (int peer = 0; peer < c->ranks; peer++) {
		unsigned char *mine = o->kind == REDUCE_SCATTER || o->kind == ALL_TO_ALL ? from + peer * part : from;
		if (peer == c->rank) {
			if (part && from)
				memcpy(parts + peer * part, mine, part);
			continue;
		}
		if (o->kind != BROADCAST || (int)o->root == c->rank)
			messages[n++] = (message){peer, true, h, mine, 0};
		if (o->kind != BROADCAST || (int)o->root == peer)
			messages[n++] = (message){peer, false, h, parts + peer * part, 0};
	}
	const bool ok = exchange(c, messages, n);
	if (ok && (o->kind == ALL_REDUCE || o->kind == REDUCE_SCATTER))
		reduce(to, parts, o->count, o);
	else if (ok && (o->kind == ALL_GATHER || o->kind == ALL_TO_ALL))
		memcpy(to, parts, part * c->ranks);
	else if (ok && o->kind == BROADCAST)
		memcpy(to, parts + o->root * part, part);
	free(parts);
	return ok;
}

void *buffer(uint64_t address, uint64_t bytes) { return bytes ? device_memory(address, bytes) : NULL; }

status run_op(void *data) {
	const op *o = data;
	comm *c = object_find(o->comm, COMM);
	unsigned char *from = buffer(o->from, c ? bytes_from(o) : 0), *to = buffer(o->to, c ? bytes_to(o) : 0);
	if (!c || (!from && bytes_from(o)) || (!to && bytes_to(o))) {
		complain("a collective runs after its communicator or memory was freed");
		return FAIL_HCCL;
	}
	return run_collective(o, from, to) ? SUCCESS : FAIL_HCCL;
}
