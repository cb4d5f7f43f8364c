//go:build cuda && cgo && linux

#include "libcuda.h"
#include "api.h"

octet_status octet_module_load(const octet_device *d, const void *image, octet_handle *out) {
	CUmodule m;
	ENTER(d);
	TRY(d->api, cuModuleLoadData, &m, image);
	*out = (octet_handle)m;
	return (octet_status){0};
}

octet_status octet_module_free(const octet_device *d, octet_handle m) {
	ENTER(d);
	TRY(d->api, cuModuleUnload, (CUmodule)m);
	return (octet_status){0};
}

octet_status octet_function(const octet_device *d, octet_handle m, const char *name, octet_handle *out, int *bytes) {
	CUfunction f;
	ENTER(d);
	TRY(d->api, cuModuleGetFunction, &f, (CUmodule)m, name);
	*out = (octet_handle)f;
	*bytes = -1;
	if (d->api->cuFuncGetParamInfo) {
		// CUDA has no function that returns the count: a query beyond the last parameter
		// fails.
		size_t offset, size;
		const int one = !d->api->cuFuncGetParamInfo(f, 0, &offset, &size);
		*bytes = one && d->api->cuFuncGetParamInfo(f, 1, &offset, &(size_t){0}) ? (int)size : -2;
	}
	return (octet_status){0};
}

octet_status octet_function_shared(const octet_device *d, octet_handle f, int bytes) {
	ENTER(d);
	TRY(d->api, cuFuncSetAttribute, (CUfunction)f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes);
	return (octet_status){0};
}

octet_status octet_launch(const octet_device *d, octet_handle f, octet_handle s, unsigned gx, unsigned gy, unsigned gz,
			  unsigned block, unsigned shared, const uint64_t *args, size_t bytes) {
	void *extra[] = {
		OCTET_LAUNCH_PARAM_BUFFER_POINTER, (void *)args,
		OCTET_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
		OCTET_LAUNCH_PARAM_END,
	};
	ENTER(d);
	TRY(d->api, cuLaunchKernel, (CUfunction)f, gx, gy, gz, block, 1, 1, shared, (CUstream)s, NULL, extra);
	return (octet_status){0};
}
