//go:build ignore

// Stand-in for libcuda.so.1: modules, which are shared objects from the stand-in for
// NVRTC, and launches of their kernels on the CPU.

#define _GNU_SOURCE
#include "libcuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int cuDeviceGetAttribute(int *value, int attribute, int device);

// A kernel, compiled with cuda_host.h, takes the address of its arguments. A runner, which
// cuda_host.h adds to every module, runs the blocks of a grid one after the other and
// returns an error message, or NULL.
typedef void (*kernel)(const void *args);
typedef const char *(*runner)(kernel f, const unsigned grid[3], unsigned block, unsigned shared, const void *args);

typedef struct {
	object object;
	void *library;
	int file; // stays open, so that no other module gets its path
	runner run;
} module;

typedef struct {
	object object;
	module *of;
	kernel f;
	size_t bytes; // size of the kernel's parameter; 0: unknown
	int shared;   // maximum of dynamic shared memory
} function;

enum { DEFAULT_SHARED = 48 * 1024, MAX_ARGS = 4096 };

// arch_matches returns whether code for an architecture runs on this device: 9.0 runs
// sm_90 and sm_90a.
static int arch_matches(const char *arch) {
	char want[16];
	const int n = snprintf(want, sizeof want, "sm_%ld", setting("STANDIN_CAPABILITY", 90));
	return !strncmp(arch, want, n) && (!arch[n] || !strcmp(arch + n, "a"));
}

int cuModuleLoadData(void **out, const void *image) {
	int status = enter();
	if (status)
		return status;
	if ((status = unsafe_in_capture()))
		return leave(status);
	const standin_image *i = image;
	if (memcmp(i->magic, STANDIN_MAGIC, sizeof STANDIN_MAGIC))
		return leave(INVALID_IMAGE);
	if (!arch_matches(i->arch))
		return leave(NO_BINARY_FOR_GPU);
	module m = {.file = memfd_create("module", MFD_CLOEXEC)};
	char path[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", m.file);
	if (write(m.file, i + 1, i->bytes) != (ssize_t)i->bytes || !(m.library = dlopen(path, RTLD_NOW | RTLD_LOCAL))) {
		fprintf(stderr, "stand-in: load a module: %s\n", dlerror());
		close(m.file);
		return leave(INVALID_IMAGE);
	}
	*(void **)&m.run = dlsym(m.library, "octet_host_launch");
	if (!m.run)
		fprintf(stderr, "stand-in: a module without octet_host_launch: was it compiled with cuda_host.h?\n");
	module *made = object_new(MODULE, sizeof m);
	m.object = made->object;
	*made = m;
	*out = made;
	return leave(m.run ? SUCCESS : INVALID_IMAGE);
}

int cuModuleUnload(void *handle) {
	int status = enter();
	if (status)
		return status;
	module *m = object_find(handle, MODULE);
	status = m ? unsafe_in_capture() : INVALID_HANDLE;
	if (!status)
		status = drain_all();
	if (!status) {
		for (object *o = object_first(); o;) {
			object *next = o->next;
			if (o->kind == FUNCTION && ((function *)o)->of == m)
				object_free(o);
			o = next;
		}
		dlclose(m->library);
		close(m->file);
		object_free(m);
	}
	return leave(status);
}

int cuModuleGetFunction(void **out, void *handle, const char *name) {
	const int status = enter();
	if (status)
		return status;
	module *m = object_find(handle, MODULE);
	if (!m)
		return leave(INVALID_HANDLE);
	void *address = dlsym(m->library, name);
	if (!address)
		return leave(NOT_FOUND);
	char parameter[256];
	snprintf(parameter, sizeof parameter, "standin_parameter_%s", name);
	const unsigned long *bytes = dlsym(m->library, parameter);
	function *f = object_new(FUNCTION, sizeof *f);
	f->of = m;
	*(void **)&f->f = address;
	f->bytes = bytes ? *bytes : 0;
	f->shared = DEFAULT_SHARED;
	*out = f;
	return leave(SUCCESS);
}

int cuFuncGetParamInfo(void *handle, size_t index, size_t *offset, size_t *size) {
	const int status = enter();
	if (status)
		return status;
	const function *f = object_find(handle, FUNCTION);
	if (!f || !f->bytes || index)
		return leave(f ? INVALID_VALUE : INVALID_HANDLE);
	*offset = 0;
	*size = f->bytes;
	return leave(SUCCESS);
}

int cuFuncSetAttribute(void *handle, int attribute, int value) {
	const int status = enter();
	if (status)
		return status;
	function *f = object_find(handle, FUNCTION);
	if (!f)
		return leave(INVALID_HANDLE);
	int max;
	cuDeviceGetAttribute(&max, 97, 1000);
	if (attribute != 8 || value < 0 || value > max)
		return leave(INVALID_VALUE);
	f->shared = value > DEFAULT_SHARED ? value : DEFAULT_SHARED;
	return leave(SUCCESS);
}

typedef struct {
	runner run;
	kernel f;
	unsigned grid[3], block, shared;
	uint64_t args[MAX_ARGS / 8];
} call;

static int launch(void *data) {
	static long launches;
	const call *c = data;
	if (++launches == setting("STANDIN_LOST", 0))
		return setting("STANDIN_LOST_CODE", ILLEGAL_ADDRESS);
	while (launches == setting("STANDIN_HANG", 0)) // with the driver's lock held
		pause();
	advance_clock((int64_t)c->grid[0] * c->grid[1] * c->grid[2] * c->block);
	const char *error = c->run(c->f, c->grid, c->block, c->shared, c->args);
	if (error)
		fprintf(stderr, "stand-in: kernel failed: %s\n", error);
	return error ? LAUNCH_FAILED : SUCCESS;
}

// The limits are from the CUDA C++ programming guide, the same for all devices with FP8.
int cuLaunchKernel(void *handle, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
		   unsigned shared, void *s, void **params, void **extra) {
	const int status = enter();
	if (status)
		return status;
	const function *f = object_find(handle, FUNCTION);
	if (!f)
		return leave(INVALID_HANDLE);
	if (!gx || !gy || !gz || gx > 2147483647u || gy > 65535 || gz > 65535 || !bx || bx > 1024 || by != 1 || bz != 1 ||
	    shared > (unsigned)f->shared)
		return leave(INVALID_VALUE);
	if (params || !extra || extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4])
		return leave(INVALID_VALUE);
	call c = {.run = f->of->run, .f = f->f, .grid = {gx, gy, gz}, .block = bx, .shared = shared};
	const size_t bytes = *(size_t *)extra[3];
	if (bytes > MAX_ARGS || (f->bytes && bytes != f->bytes))
		return leave(701); // CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: arguments of a wrong size, see cuda.h
	memset(c.args, 0xff, sizeof c.args); // missing arguments are invalid addresses
	memcpy(c.args, extra[1], bytes);
	return leave(standin_enqueue(s, launch, &c, sizeof c));
}
