//go:build gaudi && cgo && linux

#include "libsynapse.h"
#include "api.h"

octet_syn_status octet_syn_stream_new(const octet_synapse *api, uint32_t device, octet_syn_handle *out) {
	synStreamHandle s;
	TRY(api, synStreamCreateGeneric, &s, device, 0);
	*out = (octet_syn_handle)s;
	return (octet_syn_status){0};
}

octet_syn_status octet_syn_stream_free(const octet_synapse *api, octet_syn_handle s) {
	TRY(api, synStreamDestroy, (synStreamHandle)s);
	return (octet_syn_status){0};
}

octet_syn_status octet_syn_stream_wait(const octet_synapse *api, octet_syn_handle s) {
	TRY(api, synStreamSynchronize, (synStreamHandle)s);
	return (octet_syn_status){0};
}

octet_syn_status octet_syn_fill(const octet_synapse *api, octet_syn_handle s, uint64_t to, uint8_t value, uint64_t bytes) {
	TRY(api, synMemsetD8Async, to, value, bytes, (synStreamHandle)s);
	return (octet_syn_status){0};
}

octet_syn_status octet_syn_copy(const octet_synapse *api, octet_syn_handle s, uint64_t to, uint64_t from, uint64_t bytes) {
	TRY(api, synMemCopyAsync, (synStreamHandle)s, from, bytes, to, DRAM_TO_DRAM);
	return (octet_syn_status){0};
}

octet_syn_status octet_syn_copy_in(const octet_synapse *api, octet_syn_handle s, uint64_t to, const void *from, uint64_t bytes) {
	TRY(api, synMemCopyAsync, (synStreamHandle)s, (uint64_t)(uintptr_t)from, bytes, to, HOST_TO_DRAM);
	return (octet_syn_status){0};
}

octet_syn_status octet_syn_copy_out(const octet_synapse *api, octet_syn_handle s, void *to, uint64_t from, uint64_t bytes) {
	TRY(api, synMemCopyAsync, (synStreamHandle)s, from, bytes, (uint64_t)(uintptr_t)to, DRAM_TO_HOST);
	return (octet_syn_status){0};
}

octet_syn_status octet_syn_event_new(const octet_synapse *api, uint32_t device, octet_syn_handle *out) {
	synEventHandle e;
	TRY(api, synEventCreate, &e, device, EVENT_COLLECT_TIME);
	*out = (octet_syn_handle)e;
	return (octet_syn_status){0};
}

octet_syn_status octet_syn_event_free(const octet_synapse *api, octet_syn_handle e) {
	TRY(api, synEventDestroy, (synEventHandle)e);
	return (octet_syn_status){0};
}

octet_syn_status octet_syn_event_record(const octet_synapse *api, octet_syn_handle s, octet_syn_handle e) {
	TRY(api, synEventRecord, (synEventHandle)e, (synStreamHandle)s);
	return (octet_syn_status){0};
}

octet_syn_status octet_syn_event_elapsed(const octet_synapse *api, octet_syn_handle from, octet_syn_handle to, uint64_t *nanoseconds) {
	TRY(api, synEventSynchronize, (synEventHandle)to);
	TRY(api, synEventElapsedTime, nanoseconds, (synEventHandle)from, (synEventHandle)to);
	return (octet_syn_status){0};
}
