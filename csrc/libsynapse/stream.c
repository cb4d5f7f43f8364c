//go:build gaudi && cgo && linux

#include "libsynapse.h"
#include "api.h"

octet_status octet_stream_new(const octet_synapse *api, uint32_t device, octet_handle *out) {
	synStreamHandle s;
	TRY(api, synStreamCreateGeneric, &s, device, 0);
	*out = (octet_handle)s;
	return (octet_status){0};
}

octet_status octet_stream_free(const octet_synapse *api, octet_handle s) {
	TRY(api, synStreamDestroy, (synStreamHandle)s);
	return (octet_status){0};
}

octet_status octet_stream_wait(const octet_synapse *api, octet_handle s) {
	TRY(api, synStreamSynchronize, (synStreamHandle)s);
	return (octet_status){0};
}

octet_status octet_fill(const octet_synapse *api, octet_handle s, uint64_t to, uint8_t value, uint64_t bytes) {
	TRY(api, synMemsetD8Async, to, value, bytes, (synStreamHandle)s);
	return (octet_status){0};
}

octet_status octet_copy(const octet_synapse *api, octet_handle s, uint64_t to, uint64_t from, uint64_t bytes) {
	TRY(api, synMemCopyAsync, (synStreamHandle)s, from, bytes, to, DRAM_TO_DRAM);
	return (octet_status){0};
}

octet_status octet_copy_in(const octet_synapse *api, octet_handle s, uint64_t to, const void *from, uint64_t bytes) {
	TRY(api, synMemCopyAsync, (synStreamHandle)s, (uint64_t)(uintptr_t)from, bytes, to, HOST_TO_DRAM);
	return (octet_status){0};
}

octet_status octet_copy_out(const octet_synapse *api, octet_handle s, void *to, uint64_t from, uint64_t bytes) {
	TRY(api, synMemCopyAsync, (synStreamHandle)s, from, bytes, (uint64_t)(uintptr_t)to, DRAM_TO_HOST);
	return (octet_status){0};
}

octet_status octet_event_new(const octet_synapse *api, uint32_t device, octet_handle *out) {
	synEventHandle e;
	TRY(api, synEventCreate, &e, device, EVENT_COLLECT_TIME);
	*out = (octet_handle)e;
	return (octet_status){0};
}

octet_status octet_event_free(const octet_synapse *api, octet_handle e) {
	TRY(api, synEventDestroy, (synEventHandle)e);
	return (octet_status){0};
}

octet_status octet_event_record(const octet_synapse *api, octet_handle s, octet_handle e) {
	TRY(api, synEventRecord, (synEventHandle)e, (synStreamHandle)s);
	return (octet_status){0};
}

octet_status octet_event_elapsed(const octet_synapse *api, octet_handle from, octet_handle to, uint64_t *nanoseconds) {
	TRY(api, synEventSynchronize, (synEventHandle)to);
	TRY(api, synEventElapsedTime, nanoseconds, (synEventHandle)from, (synEventHandle)to);
	return (octet_status){0};
}
