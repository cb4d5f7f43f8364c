//go:build ignore

// Stand-in for libSynapse.so: HCCL, collectives between processes of one machine. Calls are
// checked here and enqueued on a stream, which runs them in order when a call waits for it
// (libsynapse_hccl_run.c).

#include "libsynapse_hccl.h"

#include <stdlib.h>

result enter_hccl(void) {
	const status s = enter();
	return s == SYNAPSE_TERMINATED ? HCCL_SYNAPSE_TERMINATED : s ? HCCL_INVALID_USAGE : HCCL_SUCCESS;
}

result leave_hccl(result r) {
	leave(SUCCESS);
	return r;
}

const char *hcclGetErrorString(result r) {
	static const char *const texts[] = {"success", "no device", "unsupported", "out of memory", "unhandled synapse error", "system error", "internal error",
	                                    "invalid argument", "invalid usage", "socket error", "libfabric error", "try again", "busy", "", "stream error", "synapse terminated", "port down"};
	return r < sizeof texts / sizeof *texts ? texts[r] : "unknown";
}

static bool overlaps(const op *o) {
	const uint64_t a = bytes_from(o), b = bytes_to(o);
	if (!a || !b || o->from + a <= o->to || o->to + b <= o->from)
		return false;
	const uint64_t part = o->count * type_size(element_type(o->type)) * o->comm->rank;
	switch (o->kind) { // in place, as in NCCL
	case REDUCE_SCATTER: return o->to != o->from + part;
	case ALL_GATHER: return o->from != o->to + part;
	case ALL_TO_ALL: return true;
	default: return o->from != o->to;
	}
}

static result call_op(op o, void *handle, void *stream) {
	ENTER_HCCL();
	o.comm = object_find(handle, COMM);
	if (!o.comm || o.root >= (uint32_t)o.comm->ranks)
		return leave_hccl(HCCL_INVALID_ARGUMENT);
	if (!element_type(o.type)) // no types of 1 or 8 bytes, so no FP8
		return leave_hccl(HCCL_UNSUPPORTED);
	const bool reduces = o.kind == ALL_REDUCE || o.kind == REDUCE_SCATTER;
	if (reduces && o.reduction != SUM && o.reduction != MAX)
		return leave_hccl(HCCL_UNSUPPORTED); // HCCL does not support prod and avg; octet does not use min
	if (o.kind == ALL_TO_ALL && o.count % o.comm->ranks)
		return leave_hccl(HCCL_INVALID_ARGUMENT);
	if (!o.count || (bytes_from(&o) && !buffer(o.from, bytes_from(&o))) || (bytes_to(&o) && !buffer(o.to, bytes_to(&o))) || overlaps(&o))
		return leave_hccl(HCCL_INVALID_ARGUMENT);
	return leave_hccl(enqueue(stream, run_op, &o, sizeof o) ? HCCL_INVALID_ARGUMENT : HCCL_SUCCESS);
}

result hcclAllReduce(uint64_t from, uint64_t to, size_t count, uint32_t type, uint32_t reduction, void *c, void *stream) {
	return call_op((op){.kind = ALL_REDUCE, .from = from, .to = to, .count = count, .type = type, .reduction = reduction}, c, stream);
}

result hcclReduceScatter(uint64_t from, uint64_t to, size_t count, uint32_t type, uint32_t reduction, void *c, void *stream) {
	return call_op((op){.kind = REDUCE_SCATTER, .from = from, .to = to, .count = count, .type = type, .reduction = reduction}, c, stream);
}

result hcclAllGather(uint64_t from, uint64_t to, size_t count, uint32_t type, void *c, void *stream) {
	return call_op((op){.kind = ALL_GATHER, .from = from, .to = to, .count = count, .type = type, .reduction = NONE}, c, stream);
}

result hcclAlltoAll(uint64_t from, uint64_t to, size_t count, uint32_t type, void *c, void *stream) {
	return call_op((op){.kind = ALL_TO_ALL, .from = from, .to = to, .count = count, .type = type, .reduction = NONE}, c, stream);
}

result hcclBroadcast(uint64_t from, uint64_t to, size_t count, uint32_t type, int root, void *c, void *stream) {
	return call_op((op){.kind = BROADCAST, .from = from, .to = to, .count = count, .type = type, .reduction = NONE, .root = root}, c, stream);
}
