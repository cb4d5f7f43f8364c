//go:build gaudi && cgo && linux

#define _GNU_SOURCE // dladdr
#include "libsynapse.h"
#include "api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// load opens a library for good and looks up all names; the optional ones at
// the end may be missing. It returns the table of their addresses, or NULL and
// why. dlerror belongs to the thread, so it has to be read before Go may move
// on to another one. RTLD_LOCAL is how PyTorch's bridge loads SynapseAI, too.
static void *load(const char *path, const char *const *names, size_t count, size_t optional, octet_syn_loaded *out) {
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

static const char *const hccl[] = {OCTET_HCCL_FUNCTIONS(NAME)};

const octet_synapse *octet_synapse_load(const char *path, octet_syn_loaded *out) {
	static const char *const names[] = {OCTET_SYNAPSE_FUNCTIONS(NAME) OCTET_HCCL_FUNCTIONS(NAME)};
	_Static_assert(sizeof names == sizeof(octet_synapse), "one pointer for each name");
	return load(path, names, COUNT(names), COUNT(hccl), out);
}

const char *octet_hccl_missing(const octet_synapse *api) {
	void *const *table = (void *const *)&api->hcclGetErrorString; // the first of the list
	for (size_t i = 0; i < COUNT(hccl); i++)
		if (!table[i])
			return hccl[i];
	return NULL;
}

const octet_hlml *octet_hlml_load(const char *path, octet_syn_loaded *out) {
	static const char *const names[] = {OCTET_HLML_FUNCTIONS(NAME) OCTET_HLML_OPTIONAL(NAME)};
	static const char *const optional[] = {OCTET_HLML_OPTIONAL(NAME)};
	_Static_assert(sizeof names == sizeof(octet_hlml), "one pointer for each name");
	return load(path, names, COUNT(names), COUNT(optional), out);
}
