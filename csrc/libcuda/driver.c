//go:build cuda && cgo && linux

#include "libcuda.h"
#include "api.h"

int octet_version(const octet_driver *api) {
	int version = 0;
	api->cuDriverGetVersion(&version); // leaves 0 on failure, and needs no cuInit
	return version;
}

const char *octet_error_text(const octet_driver *api, int code) {
	const char *text = NULL;
	if (api->cuGetErrorString((CUresult)code, &text) || !text)
		return "an unknown error";
	return text;
}

octet_status octet_count(const octet_driver *api, int *count) {
	TRY(api, cuInit, 0);
	TRY(api, cuDeviceGetCount, count);
	return (octet_status){0};
}

octet_status octet_id(const octet_driver *api, int ordinal, int *id) {
	TRY(api, cuDeviceGet, id, ordinal);
	return (octet_status){0};
}

octet_status octet_describe(const octet_driver *api, int id, octet_gpu *out) {
	TRY(api, cuDeviceGetName, out->name, sizeof out->name, id);
	// Only sensors need the bus, and virtualization layers may not report it.
	if (api->cuDeviceGetPCIBusId(out->bus, sizeof out->bus, id))
		out->bus[0] = 0;
	TRY(api, cuDeviceGetAttribute, &out->major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, id);
	TRY(api, cuDeviceGetAttribute, &out->minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, id);
	TRY(api, cuDeviceGetAttribute, &out->processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, id);
	TRY(api, cuDeviceGetAttribute, &out->shared, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, id);
	TRY(api, cuDeviceTotalMem_v2, &out->memory, id);
	return (octet_status){0};
}

// cuBLASLt, a client of the runtime API, works in the primary context.
octet_status octet_open(const octet_driver *api, int ordinal, octet_device *out) {
	CUdevice id;
	CUcontext context;
	TRY(api, cuInit, 0);
	TRY(api, cuDeviceGet, &id, ordinal);
	TRY(api, cuDevicePrimaryCtxRetain, &context, id);
	*out = (octet_device){api, id, (octet_handle)context, 0};
	return (octet_status){0};
}

octet_status octet_adopt(const octet_driver *api, octet_handle context, octet_device *out) {
	CUdevice id;
	TRY(api, cuInit, 0);
	TRY(api, cuCtxSetCurrent, (CUcontext)context);
	TRY(api, cuCtxGetDevice, &id);
	*out = (octet_device){api, id, context, 1};
	return (octet_status){0};
}

octet_status octet_close(const octet_device *d) {
	if (d->adopted)
		return (octet_status){0};
	ENTER(d);
	TRY(d->api, cuCtxSetCurrent, NULL);
	TRY(d->api, cuDevicePrimaryCtxRelease_v2, d->id);
	return (octet_status){0};
}

octet_status octet_memory(const octet_device *d, size_t *free, size_t *total) {
	ENTER(d);
	TRY(d->api, cuMemGetInfo_v2, free, total);
	return (octet_status){0};
}

octet_status octet_alloc(const octet_device *d, size_t bytes, uint64_t *out) {
	CUdeviceptr p;
	ENTER(d);
	TRY(d->api, cuMemAlloc_v2, &p, bytes);
	*out = p;
	return (octet_status){0};
}

octet_status octet_free(const octet_device *d, uint64_t p) {
	ENTER(d);
	TRY(d->api, cuMemFree_v2, p);
	return (octet_status){0};
}

octet_status octet_pin(const octet_device *d, size_t bytes, void **out) {
	ENTER(d);
	TRY(d->api, cuMemHostAlloc, out, bytes, 0);
	return (octet_status){0};
}

octet_status octet_unpin(const octet_device *d, void *p) {
	ENTER(d);
	TRY(d->api, cuMemFreeHost, p);
	return (octet_status){0};
}
