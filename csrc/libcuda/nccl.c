//go:build cuda && cgo && linux

#include "libcuda.h"
#include "api.h"

#include <string.h>

int octet_nccl_version(const octet_nccl *api) {
	int version = 0;
	api->ncclGetVersion(&version); // leaves 0 on failure
	return version;
}

const char *octet_nccl_text(const octet_nccl *api, int code) {
	const char *text = api->ncclGetErrorString((ncclResult_t)code);
	return text ? text : "an unknown error";
}

octet_status octet_nccl_id(const octet_nccl *api, char id[OCTET_NCCL_ID]) {
	ncclUniqueId made;
	const int status = (int)api->ncclGetUniqueId(&made);
	memcpy(id, made.internal, sizeof made.internal);
	return status ? (octet_status){"ncclGetUniqueId", status} : (octet_status){0};
}

// The communicator is that of the device whose context is current.
octet_status octet_comm_new(const octet_device *d, const octet_nccl *api, const char id[OCTET_NCCL_ID], int rank, int ranks, octet_handle *out) {
	ncclUniqueId of;
	ncclComm_t comm = 0;
	memcpy(of.internal, id, sizeof of.internal);
	ENTER(d);
	TRY(api, ncclCommInitRank, &comm, ranks, of, rank);
	*out = (octet_handle)comm;
	return (octet_status){0};
}

octet_status octet_comm_destroy(const octet_device *d, const octet_nccl *api, octet_handle comm) {
	ENTER(d);
	TRY(api, ncclCommDestroy, (ncclComm_t)comm);
	return (octet_status){0};
}

octet_status octet_comm_abort(const octet_device *d, const octet_nccl *api, octet_handle comm) {
	ENTER(d);
	TRY(api, ncclCommAbort, (ncclComm_t)comm);
	return (octet_status){0};
}

// ncclInProgress is not an error: NCCL may be connecting the GPUs.
octet_status octet_comm_error(const octet_device *d, const octet_nccl *api, octet_handle comm) {
	ncclResult_t state = 0;
	ENTER(d);
	TRY(api, ncclCommGetAsyncError, (ncclComm_t)comm, &state);
	return state && state != ncclInProgress ? (octet_status){"NCCL in the background", (int)state} : (octet_status){0};
}

octet_status octet_collective(const octet_device *d, const octet_nccl *api, octet_handle comm, octet_handle s,
			enum octet_collective_kind what, uint64_t from, uint64_t to, size_t n) {
	const ncclComm_t c = (ncclComm_t)comm;
	const cudaStream_t stream = (cudaStream_t)s;
	const void *x = (const void *)from;
	void *out = (void *)to;
	ENTER(d);
	switch (what) {
	case OCTET_SUM_F32: TRY(api, ncclAllReduce, x, out, n, ncclFloat32, ncclSum, c, stream); break;
	case OCTET_MAX_I32: TRY(api, ncclAllReduce, x, out, n, ncclInt32, ncclMax, c, stream); break;
	case OCTET_SCATTER_SUM_F32: TRY(api, ncclReduceScatter, x, out, n, ncclFloat32, ncclSum, c, stream); break;
	case OCTET_GATHER: TRY(api, ncclAllGather, x, out, n, ncclUint8, c, stream); break;
	}
	return (octet_status){0};
}

// A group of sends and receives: ncclAlltoAll exists from NCCL 2.28 on. An error of one of
// them ends the group, whose own error would hide it.
octet_status octet_all_to_all(const octet_device *d, const octet_nccl *api, octet_handle comm, octet_handle s, int ranks,
			uint64_t from, uint64_t to, size_t n) {
	const ncclComm_t c = (ncclComm_t)comm;
	const cudaStream_t stream = (cudaStream_t)s;
	octet_status status = {0};
	ENTER(d);
	TRY(api, ncclGroupStart);
	for (int rank = 0; rank < ranks && !status.code; rank++) {
		int code = (int)api->ncclSend((const void *)(from + rank * n), n, ncclUint8, rank, c, stream);
		if (code)
			status = (octet_status){"ncclSend", code};
		else if ((code = (int)api->ncclRecv((void *)(to + rank * n), n, ncclUint8, rank, c, stream)))
			status = (octet_status){"ncclRecv", code};
	}
	const int code = (int)api->ncclGroupEnd();
	if (!status.code && code)
		status = (octet_status){"ncclGroupEnd", code};
	return status;
}
