//go:build cuda && cgo && linux

#define _GNU_SOURCE // dladdr
#include "libcuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

// CUresult and CUdevice are ints; these are all the names that are needed.
enum {
	CUDA_SUCCESS = 0,
	CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
	CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
};

// load opens a library for good. dlerror belongs to the thread, so it has to
// be read before Go may move on to another one.
static void *load(const char *path, char *reason, size_t size) {
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!lib)
		snprintf(reason, size, "%s", dlerror());
	return lib;
}

// find looks a function up and leaves the first name that is missing in reason.
static void *find(void *lib, const char *name, char *reason, size_t size) {
	void *f = dlsym(lib, name);
	if (!f && !reason[0])
		snprintf(reason, size, "the library has no %s", name);
	return f;
}

// locate writes the path of the file that a function came from, and the name
// that it was asked for by where the loader does not say.
static void locate(void *function, const char *name, char *path, size_t size) {
	Dl_info info;
	const int known = dladdr(function, &info) && info.dli_fname;
	snprintf(path, size, "%s", known ? info.dli_fname : name);
}

void octet_cuda_probe_driver(const char *path, octet_cuda_driver *out) {
	memset(out, 0, sizeof *out);
	char *reason = out->reason;
	const size_t size = sizeof out->reason;
	void *lib = load(path, reason, size);
	if (!lib)
		return;

	int (*init)(unsigned) = find(lib, "cuInit", reason, size);
	int (*version)(int *) = find(lib, "cuDriverGetVersion", reason, size);
	int (*error)(int, const char **) = find(lib, "cuGetErrorString", reason, size);
	int (*count)(int *) = find(lib, "cuDeviceGetCount", reason, size);
	int (*get)(int *, int) = find(lib, "cuDeviceGet", reason, size);
	int (*name)(char *, int, int) = find(lib, "cuDeviceGetName", reason, size);
	int (*attribute)(int *, int, int) = find(lib, "cuDeviceGetAttribute", reason, size);
	int (*memory)(size_t *, int) = find(lib, "cuDeviceTotalMem_v2", reason, size);
	if (reason[0])
		return;
	locate(init, path, out->path, sizeof out->path);

	const char *call = "cuDriverGetVersion"; // needs no cuInit
	int status = version(&out->version);
	if (!status) {
		call = "cuInit";
		status = init(0);
	}
	if (!status) {
		call = "cuDeviceGetCount";
		status = count(&out->count);
	}
	if (out->count > OCTET_CUDA_MAX_DEVICES)
		out->count = OCTET_CUDA_MAX_DEVICES;
	for (int i = 0; i < out->count && !status; i++) {
		octet_cuda_device *d = &out->devices[i];
		int id = 0;
		call = "cuDeviceGet";
		status = get(&id, i);
		if (!status) {
			call = "cuDeviceGetName";
			status = name(d->name, sizeof d->name, id);
		}
		if (!status) {
			call = "cuDeviceGetAttribute";
			status = attribute(&d->major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, id);
		}
		if (!status)
			status = attribute(&d->minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, id);
		if (!status) {
			call = "cuDeviceTotalMem_v2";
			status = memory(&d->memory, id);
		}
	}
	if (status) {
		const char *text = NULL;
		if (error(status, &text) != CUDA_SUCCESS || !text)
			text = "an unknown error";
		snprintf(reason, size, "%s returned %d: %s", call, status, text);
		out->count = 0;
	}
}

void octet_cuda_probe_cublaslt(const char *path, octet_cuda_library *out) {
	memset(out, 0, sizeof *out);
	void *lib = load(path, out->reason, sizeof out->reason);
	if (!lib)
		return;
	size_t (*version)(void) = find(lib, "cublasLtGetVersion", out->reason, sizeof out->reason);
	if (!version)
		return;
	locate(version, path, out->path, sizeof out->path);
	const int v = (int)version();
	out->major = v / 10000;
	out->minor = v / 100 % 100;
	out->patch = v % 100;
}

void octet_cuda_probe_nvrtc(const char *path, octet_cuda_library *out) {
	memset(out, 0, sizeof *out);
	void *lib = load(path, out->reason, sizeof out->reason);
	if (!lib)
		return;
	int (*version)(int *, int *) = find(lib, "nvrtcVersion", out->reason, sizeof out->reason);
	if (!version)
		return;
	locate(version, path, out->path, sizeof out->path);
	const int status = version(&out->major, &out->minor);
	if (status)
		snprintf(out->reason, sizeof out->reason, "nvrtcVersion returned %d", status);
}
