//go:build gaudi && cgo && linux

#define _GNU_SOURCE // dladdr
#include "libsynapse.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

// synStatus is an int, synDeviceType an enum; these values are all that is
// needed. SynapseAI answers some questions with synNoDeviceFound instead of 0.
enum { synSuccess = 0, synNoDeviceFound = 8 };
enum { synDeviceGaudi2 = 4, synDeviceGaudi3 = 5 };

// find looks a function up and leaves the first name that is missing in reason.
static void *find(void *lib, const char *name, char *reason, size_t size) {
	void *f = dlsym(lib, name);
	if (!f && !reason[0])
		snprintf(reason, size, "the library has no %s", name);
	return f;
}

void octet_synapse_probe(const char *path, octet_synapse_report *out) {
	memset(out, 0, sizeof *out);
	char *reason = out->reason;
	const size_t size = sizeof out->reason;
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!lib) {
		snprintf(reason, size, "%s", dlerror());
		return;
	}

	int (*initialize)(void) = find(lib, "synInitialize", reason, size);
	int (*destroy)(void) = find(lib, "synDestroy", reason, size);
	int (*version)(char *, int) = find(lib, "synDriverGetVersion", reason, size);
	int (*count)(uint32_t *) = find(lib, "synDeviceGetCount", reason, size);
	int (*count_type)(uint32_t *, int) = find(lib, "synDeviceGetCountByDeviceType", reason, size);
	int (*describe)(int, char *, size_t) = find(lib, "synStatusGetBriefDescription", reason, size);
	if (reason[0])
		return;
	Dl_info info;
	const int known = dladdr((void *)initialize, &info) && info.dli_fname;
	snprintf(out->path, sizeof out->path, "%s", known ? info.dli_fname : path);

	const char *call = "synInitialize";
	int status = initialize();
	const int started = status == synSuccess;
	if (!status) {
		call = "synDriverGetVersion";
		status = version(out->version, sizeof out->version);
	}
	if (!status) {
		call = "synDeviceGetCount";
		status = count(&out->devices);
		if (status == synNoDeviceFound)
			status = synSuccess;
	}
	if (!status && out->devices) {
		call = "synDeviceGetCountByDeviceType";
		status = count_type(&out->gaudi2, synDeviceGaudi2);
		if (status == synSuccess || status == synNoDeviceFound)
			status = count_type(&out->gaudi3, synDeviceGaudi3);
		if (status == synNoDeviceFound)
			status = synSuccess;
	}
	if (status) {
		char text[128] = "";
		if (describe(status, text, sizeof text) != synSuccess || !text[0])
			snprintf(text, sizeof text, "an unknown error");
		snprintf(reason, size, "%s returned %d: %s", call, status, text);
	}
	if (started)
		destroy();
}
