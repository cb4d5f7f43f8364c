//go:build cuda && cgo && linux

#define _GNU_SOURCE // dladdr
#include "libcuda.h"
#include "api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// load opens a library for good and looks up all names; the optional ones at
// the end may be missing. It returns the table of their addresses, or NULL and
// why. dlerror belongs to the thread, so it has to be read before Go may move
// on to another one.
static void *load(const char *path, const char *const *names, size_t count, size_t optional, octet_loaded *out) {
	memset(out, 0, sizeof *out);
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		snprintf(out->reason, sizeof out->reason, "%s", dlerror());
		return NULL;
	}
	void **table = calloc(count, sizeof *table);
	if (!table) {
		snprintf(out->reason, sizeof out->reason, "no memory for the functions of %s", path);
		return NULL;
	}
	for (size_t i = 0; i < count; i++) {
		table[i] = dlsym(library, names[i]);
		if (table[i] || i >= count - optional)
			continue;
		snprintf(out->reason, sizeof out->reason, "the library has no %s", names[i]);
		free(table);
		return NULL;
	}
	Dl_info info;
	const int known = dladdr(table[0], &info) && info.dli_fname;
	snprintf(out->path, sizeof out->path, "%s", known ? info.dli_fname : path);
	return table;
}

#define NAME(result, name, parameters) #name,
#define COUNT(names) (sizeof names / sizeof names[0])

const octet_driver *octet_driver_load(const char *path, octet_loaded *out) {
	static const char *const names[] = {OCTET_DRIVER_FUNCTIONS(NAME) OCTET_DRIVER_OPTIONAL(NAME)};
	static const char *const optional[] = {OCTET_DRIVER_OPTIONAL(NAME)};
	_Static_assert(sizeof names == sizeof(octet_driver), "one pointer for each name");
	return load(path, names, COUNT(names), COUNT(optional), out);
}

// NVRTC opens its builtins (libnvrtc-builtins.so.13.0) by name when it first
// compiles, and the loader does not look beside NVRTC for them. Loaded from
// there beforehand, they are found.
static void load_builtins(const octet_nvrtc *api, const char *path) {
	int major = 0, minor = 0;
	const char *slash = strrchr(path, '/');
	if (!slash || api->nvrtcVersion(&major, &minor))
		return;
	char file[1200];
	snprintf(file, sizeof file, "%.*s/libnvrtc-builtins.so.%d.%d", (int)(slash - path), path, major, minor);
	dlopen(file, RTLD_NOW | RTLD_GLOBAL);
}

const octet_nvrtc *octet_nvrtc_load(const char *path, octet_loaded *out) {
	static const char *const names[] = {OCTET_NVRTC_FUNCTIONS(NAME)};
	_Static_assert(sizeof names == sizeof(octet_nvrtc), "one pointer for each name");
	const octet_nvrtc *api = load(path, names, COUNT(names), 0, out);
	if (api)
		load_builtins(api, out->path);
	return api;
}

const octet_cublaslt *octet_cublaslt_load(const char *path, octet_loaded *out) {
	static const char *const names[] = {OCTET_CUBLASLT_FUNCTIONS(NAME)};
	_Static_assert(sizeof names == sizeof(octet_cublaslt), "one pointer for each name");
	return load(path, names, COUNT(names), 0, out);
}

const octet_nccl *octet_nccl_load(const char *path, octet_loaded *out) {
	static const char *const names[] = {OCTET_NCCL_FUNCTIONS(NAME)};
	_Static_assert(sizeof names == sizeof(octet_nccl), "one pointer for each name");
	return load(path, names, COUNT(names), 0, out);
}
