//go:build cuda && cgo && linux

#include "libcuda.h"
#include "api.h"

// A stream that does not synchronize with the legacy default stream, which the shim never
// uses.
octet_status octet_stream_new(const octet_device *d, octet_handle *out) {
	CUstream s;
	ENTER(d);
	TRY(d->api, cuStreamCreate, &s, CU_STREAM_NON_BLOCKING);
	*out = (octet_handle)s;
	return (octet_status){0};
}

octet_status octet_stream_free(const octet_device *d, octet_handle s) {
	ENTER(d);
	TRY(d->api, cuStreamDestroy_v2, (CUstream)s);
	return (octet_status){0};
}

octet_status octet_stream_wait(const octet_device *d, octet_handle s) {
	ENTER(d);
	TRY(d->api, cuStreamSynchronize, (CUstream)s);
	return (octet_status){0};
}

// 600 is CUDA_ERROR_NOT_READY: pending work, not an error.
octet_status octet_stream_query(const octet_device *d, octet_handle s, int *idle) {
	ENTER(d);
	const int status = d->api->cuStreamQuery((CUstream)s);
	*idle = status == 0;
	return status == 0 || status == 600 ? (octet_status){0} : (octet_status){"cuStreamQuery", status};
}

// The driver's documentation does not define copies of 0 bytes, so the shim skips them.

octet_status octet_fill(const octet_device *d, octet_handle s, uint64_t to, uint8_t value, size_t bytes) {
	ENTER(d);
	if (bytes)
		TRY(d->api, cuMemsetD8Async, to, value, bytes, (CUstream)s);
	return (octet_status){0};
}

octet_status octet_copy(const octet_device *d, octet_handle s, uint64_t to, uint64_t from, size_t bytes) {
	ENTER(d);
	if (bytes)
		TRY(d->api, cuMemcpyDtoDAsync_v2, to, from, bytes, (CUstream)s);
	return (octet_status){0};
}

octet_status octet_upload(const octet_device *d, octet_handle s, uint64_t to, const void *host, size_t bytes, int wait) {
	ENTER(d);
	if (bytes)
		TRY(d->api, cuMemcpyHtoDAsync_v2, to, host, bytes, (CUstream)s);
	if (wait)
		TRY(d->api, cuStreamSynchronize, (CUstream)s);
	return (octet_status){0};
}

octet_status octet_download(const octet_device *d, octet_handle s, void *host, uint64_t from, size_t bytes, int wait) {
	ENTER(d);
	if (bytes)
		TRY(d->api, cuMemcpyDtoHAsync_v2, host, from, bytes, (CUstream)s);
	if (wait)
		TRY(d->api, cuStreamSynchronize, (CUstream)s);
	return (octet_status){0};
}

octet_status octet_event_new(const octet_device *d, int timing, octet_handle *out) {
	CUevent e;
	ENTER(d);
	TRY(d->api, cuEventCreate, &e, timing ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING);
	*out = (octet_handle)e;
	return (octet_status){0};
}

octet_status octet_event_free(const octet_device *d, octet_handle e) {
	ENTER(d);
	TRY(d->api, cuEventDestroy_v2, (CUevent)e);
	return (octet_status){0};
}

octet_status octet_event_record(const octet_device *d, octet_handle s, octet_handle e) {
	ENTER(d);
	TRY(d->api, cuEventRecord, (CUevent)e, (CUstream)s);
	return (octet_status){0};
}

octet_status octet_stream_wait_event(const octet_device *d, octet_handle s, octet_handle e) {
	ENTER(d);
	TRY(d->api, cuStreamWaitEvent, (CUstream)s, (CUevent)e, CU_EVENT_WAIT_DEFAULT);
	return (octet_status){0};
}

octet_status octet_event_wait(const octet_device *d, octet_handle e) {
	ENTER(d);
	TRY(d->api, cuEventSynchronize, (CUevent)e);
	return (octet_status){0};
}

octet_status octet_event_elapsed(const octet_device *d, octet_handle from, octet_handle to, float *milliseconds) {
	ENTER(d);
	TRY(d->api, cuEventSynchronize, (CUevent)to);
	TRY(d->api, cuEventElapsedTime, milliseconds, (CUevent)from, (CUevent)to);
	return (octet_status){0};
}
