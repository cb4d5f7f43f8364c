//go:build cuda && cgo && linux

#include "libcuda.h"
#include "api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

octet_status octet_nvrtc_version(const octet_nvrtc *api, int *major, int *minor) {
	TRY(api, nvrtcVersion, major, minor);
	return (octet_status){0};
}

const char *octet_nvrtc_text(const octet_nvrtc *api, int code) {
	const char *text = api->nvrtcGetErrorString((nvrtcResult)code);
	return text ? text : "an unknown error";
}

octet_status octet_nvrtc_archs(const octet_nvrtc *api, int capacity, int *list, int *count) {
	TRY(api, nvrtcGetNumSupportedArchs, count);
	if (*count <= capacity)
		TRY(api, nvrtcGetSupportedArchs, list);
	return (octet_status){0};
}

static octet_status read_log(const octet_nvrtc *api, nvrtcProgram p, octet_compiled *out) {
	size_t bytes = 0;
	TRY(api, nvrtcGetProgramLogSize, p, &bytes);
	out->log = calloc(bytes + 1, 1);
	if (out->log)
		TRY(api, nvrtcGetProgramLog, p, out->log);
	return (octet_status){0};
}

static octet_status read_cubin(const octet_nvrtc *api, nvrtcProgram p, octet_compiled *out) {
	TRY(api, nvrtcGetCUBINSize, p, &out->bytes);
	out->cubin = malloc(out->bytes);
	if (out->cubin)
		TRY(api, nvrtcGetCUBIN, p, out->cubin);
	return (octet_status){0};
}

// NVRTC opens its builtins (libnvrtc-builtins.so.13.0) by name at its first compilation,
// and the loader does not search NVRTC's folder. If they are loaded beforehand, NVRTC
// finds them. Repeated calls are harmless: dlopen counts references.
void octet_nvrtc_builtins(const octet_nvrtc *api, const char *path) {
	int major = 0, minor = 0;
	const char *slash = strrchr(path, '/');
	if (!slash || api->nvrtcVersion(&major, &minor))
		return;
	char file[1200];
	snprintf(file, sizeof file, "%.*s/libnvrtc-builtins.so.%d.%d", (int)(slash - path), path, major, minor);
	dlopen(file, RTLD_NOW | RTLD_GLOBAL);
}

octet_status octet_nvrtc_compile(const octet_nvrtc *api, const char *name, const char *source,
				 int headers, const char *const *texts, const char *const *names,
				 int options, const char *const *option, octet_compiled *out) {
	nvrtcProgram p;
	TRY(api, nvrtcCreateProgram, &p, source, name, headers, texts, names);
	octet_status status = {"nvrtcCompileProgram", (int)api->nvrtcCompileProgram(p, options, option)};
	const octet_status logged = read_log(api, p, out);
	if (!status.code)
		status = logged;
	if (!status.code)
		status = read_cubin(api, p, out);
	api->nvrtcDestroyProgram(&p);
	return status;
}
