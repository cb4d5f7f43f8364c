//go:build gaudi && cgo && linux

#include "libsynapse.h"
#include "api.h"

#include <string.h>

_Static_assert(sizeof(hcclUniqueId) == OCTET_UNIQUE_ID, "the id that Go passes on");

const char *octet_hccl_text(const octet_synapse *api, int code) {
	const char *text = api->hcclGetErrorString(code);
	return text ? text : "";
}

octet_syn_status octet_syn_unique_id(const octet_synapse *api, void *out) {
	hcclUniqueId id;
	memset(&id, 0, sizeof id);
	TRY(api, hcclGetUniqueId, &id);
	memcpy(out, &id, sizeof id);
	return (octet_syn_status){0};
}

octet_syn_status octet_syn_comm_new(const octet_synapse *api, const void *id, int ranks, int rank, octet_syn_handle *out) {
	hcclUniqueId unique;
	memcpy(&unique, id, sizeof unique);
	hcclComm_t c;
	TRY(api, hcclCommInitRank, &c, ranks, unique, rank);
	*out = (octet_syn_handle)c;
	return (octet_syn_status){0};
}

octet_syn_status octet_syn_comm_free(const octet_synapse *api, octet_syn_handle c) {
	TRY(api, hcclCommDestroy, (hcclComm_t)c);
	return (octet_syn_status){0};
}

// HCCL takes device addresses as pointers, and its own constants as types and reductions.
static void *pointer(uint64_t p) { return (void *)(uintptr_t)p; }

octet_syn_status octet_syn_all_reduce(const octet_synapse *api, octet_syn_handle c, octet_syn_handle s, uint64_t p, uint64_t count, int type, int op) {
	TRY(api, hcclAllReduce, pointer(p), pointer(p), count, type, op, (hcclComm_t)c, (octet_syn_stream)s);
	return (octet_syn_status){0};
}

octet_syn_status octet_syn_reduce_scatter(const octet_synapse *api, octet_syn_handle c, octet_syn_handle s, uint64_t to, uint64_t from,
				  uint64_t count, int type, int op) {
	TRY(api, hcclReduceScatter, pointer(from), pointer(to), count, type, op, (hcclComm_t)c, (octet_syn_stream)s);
	return (octet_syn_status){0};
}

octet_syn_status octet_syn_all_gather(const octet_synapse *api, octet_syn_handle c, octet_syn_handle s, uint64_t to, uint64_t from,
			      uint64_t count, int type) {
	TRY(api, hcclAllGather, pointer(from), pointer(to), count, type, (hcclComm_t)c, (octet_syn_stream)s);
	return (octet_syn_status){0};
}

// The count is that of all parts together, as in PyTorch's bridge (alltoall_base).
octet_syn_status octet_syn_all_to_all(const octet_synapse *api, octet_syn_handle c, octet_syn_handle s, uint64_t to, uint64_t from,
			      uint64_t count, int type) {
	TRY(api, hcclAlltoAll, pointer(from), pointer(to), count, type, (hcclComm_t)c, (octet_syn_stream)s);
	return (octet_syn_status){0};
}

octet_syn_status octet_syn_broadcast(const octet_synapse *api, octet_syn_handle c, octet_syn_handle s, uint64_t p, uint64_t count, int type, int root) {
	TRY(api, hcclBroadcast, pointer(p), pointer(p), count, type, root, (hcclComm_t)c, (octet_syn_stream)s);
	return (octet_syn_status){0};
}
