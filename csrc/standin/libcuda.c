//go:build ignore

// Stand-in for libcuda.so.1: the driver, its device and the device's memory.
// See standin.go.

#define _GNU_SOURCE
#include "libcuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The lock is recursive: operations that run in a driver call may call the driver.
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static pthread_cond_t notification = PTHREAD_COND_INITIALIZER;
static int started;
static device devices[16];
__thread context *current;

// alive returns whether a context exists: a device's primary one while it is retained, or
// one that cuCtxCreate made.
static int alive(const void *c) {
	for (const device *d = devices; d < devices + sizeof devices / sizeof *devices; d++)
		if (c == &d->primary)
			return d->retained > 0;
	return object_find(c, CONTEXT) != NULL;
}

int standin_current(void) {
	pthread_mutex_lock(&lock);
	return leave(current && alive(current));
}

int standin_ordinal(void) {
	pthread_mutex_lock(&lock);
	return leave(current && alive(current) ? (int)(current->device - devices) : -1);
}

int enter(void) {
	pthread_mutex_lock(&lock);
	if (!standin_current())
		return leave(INVALID_CONTEXT);
	return current->device->lost ? leave(current->device->lost) : SUCCESS;
}

int leave(int status) {
	pthread_mutex_unlock(&lock);
	return status;
}

void wait_for_notify(void) { pthread_cond_wait(&notification, &lock); }
void notify_all(void) { pthread_cond_broadcast(&notification); }

void standin_notify(void) {
	pthread_mutex_lock(&lock);
	notify_all();
	pthread_mutex_unlock(&lock);
}

// Objects.

static object *objects;

void *object_new(enum kind kind, size_t bytes) {
	object *o = calloc(1, bytes);
	o->kind = kind;
	o->context = kind == CONTEXT ? NULL : current;
	o->next = objects;
	objects = o;
	return o;
}

object *object_first(void) { return objects; }

void *object_find(const void *handle, enum kind kind) {
	for (object *o = objects; o; o = o->next)
		if (o == handle && o->kind == kind && (kind == CONTEXT || o->context == current))
			return o;
	return NULL;
}

void object_free(void *dead) {
	for (object **o = &objects; *o; o = &(*o)->next)
		if (*o == dead) {
			*o = (*o)->next;
			free(dead);
			return;
		}
}

// The driver and its devices.

int cuDriverGetVersion(int *version) {
	*version = setting("STANDIN_CUDA", 13000);
	return SUCCESS;
}

int cuInit(unsigned flags) {
	if (flags)
		return INVALID_VALUE;
	if (setting("STANDIN_STUB", 0))
		return STUB_LIBRARY;
	if (setting("STANDIN_GPUS", 1) == 0)
		return NO_DEVICE;
	started = 1;
	return SUCCESS;
}

int cuGetErrorString(int status, const char **text) {
	switch (status) {
	case OUT_OF_MEMORY: *text = "out of memory"; break;
	case STUB_LIBRARY: *text = "CUDA driver is a stub library"; break;
	case NO_DEVICE: *text = "no CUDA-capable device is detected"; break;
	case ILLEGAL_ADDRESS: *text = "an illegal memory access was encountered"; break;
	case CAPTURE_UNJOINED: *text = "capture was not joined to the original stream"; break;
	case CAPTURE_UNSUPPORTED: *text = "operation not permitted when stream is capturing"; break;
	default: *text = "stand-in error";
	}
	return SUCCESS;
}

int cuDeviceGetCount(int *count) {
	if (!started)
		return NOT_INITIALIZED;
	*count = setting("STANDIN_GPUS", 1);
	return SUCCESS;
}

// Device handles differ from ordinals, so that confusing them fails.
enum { HANDLE = 1000 };

int cuDeviceGet(int *id, int ordinal) {
	if (ordinal < 0 || ordinal >= setting("STANDIN_GPUS", 1) || ordinal >= (int)(sizeof devices / sizeof *devices))
		return INVALID_DEVICE;
	*id = HANDLE + ordinal;
	return SUCCESS;
}

int cuDeviceGetName(char *name, int size, int device) {
	if (device < HANDLE)
		return INVALID_DEVICE;
	snprintf(name, size, "Stand-in %d", device - HANDLE);
	return SUCCESS;
}

int cuDeviceGetPCIBusId(char *bus, int size, int device) {
	if (device < HANDLE)
		return INVALID_DEVICE;
	if (size < 13)
		return INVALID_VALUE;
	if (!setting("STANDIN_BUS", 1))
		return NOT_SUPPORTED;
	snprintf(bus, size, "0000:%02x:00.0", FIRST_BUS + device - HANDLE);
	return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
	if (device < HANDLE)
		return INVALID_DEVICE;
	const int capability = device - HANDLE < setting("STANDIN_OLD", 0) ? 80 : setting("STANDIN_CAPABILITY", 90);
	switch (attribute) {
	case 16: // multiprocessors
		*value = 132;
		return SUCCESS;
	case 33: // PCI bus, device, domain
		*value = FIRST_BUS + device - HANDLE;
		return SUCCESS;
	case 34:
	case 50:
		*value = 0;
		return SUCCESS;
	case 75:
		*value = capability / 10;
		return SUCCESS;
	case 76:
		*value = capability % 10;
		return SUCCESS;
	case 97: // shared memory per block, from the CUDA C++ programming guide
		*value = (capability == 89 ? 99 : 227) * 1024;
		return SUCCESS;
	}
	return INVALID_VALUE;
}

static const size_t total = (size_t)80 << 30;

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
	if (device < HANDLE)
		return INVALID_DEVICE;
	*bytes = total;
	return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **out, int id) {
	if (!started)
		return NOT_INITIALIZED;
	if (id < HANDLE)
		return INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	device *d = &devices[id - HANDLE];
	if (setting("STANDIN_CONTEXT", SUCCESS))
		return leave(setting("STANDIN_CONTEXT", SUCCESS));
	d->retained++;
	d->primary.device = d;
	*out = &d->primary;
	return leave(SUCCESS);
}

// leaks lists the objects of a context on stderr. The real driver destroys them.
static int leaks(const void *in) {
	static const char *const names[] = {"device memory", "host memory", "stream", "event", "module", "function", "graph", "executable graph"};
	int count = 0;
	for (object *o = objects; o; o = o->next)
		if (o->context == in && o->kind != FUNCTION) { // exists as long as its module
			fprintf(stderr, "stand-in: %s not freed before the end of its context\n", names[o->kind]);
			count++;
		}
	return count ? PRIMARY_CONTEXT_ACTIVE : SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int id) {
	if (id < HANDLE)
		return INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	device *d = &devices[id - HANDLE];
	if (d->retained == 0)
		return leave(INVALID_CONTEXT);
	if (--d->retained > 0 || d->lost)
		return leave(SUCCESS);
	return leave(leaks(&d->primary));
}

int cuCtxCreate_v2(void **out, unsigned flags, int id) {
	(void)flags;
	if (!started)
		return NOT_INITIALIZED;
	if (id < HANDLE)
		return INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	context *c = object_new(CONTEXT, sizeof *c);
	c->device = &devices[id - HANDLE];
	current = *out = c;
	return leave(SUCCESS);
}

int cuCtxDestroy_v2(void *c) {
	pthread_mutex_lock(&lock);
	if (!object_find(c, CONTEXT))
		return leave(INVALID_CONTEXT);
	const int status = leaks(c);
	object_free(c);
	return leave(status);
}

int cuCtxSetCurrent(void *c) {
	pthread_mutex_lock(&lock);
	if (c && !alive(c))
		return leave(INVALID_CONTEXT);
	current = c;
	return leave(SUCCESS);
}

int cuCtxGetDevice(int *id) {
	const int status = enter();
	if (status)
		return status;
	*id = HANDLE + (int)(current->device - devices);
	return leave(SUCCESS);
}

// Memory is on the host's heap, between red zones that are checked when it is freed. New
// memory holds bytes that are NaN in every float format.

enum { ZONE = 256, PATTERN = 0xa5, FRESH = 0xff };

typedef struct {
	object object;
	unsigned char *block, *p; // p is block + ZONE
	size_t bytes;
} memory;

static memory *memory_of(const void *p, enum kind kind) {
	for (object *o = objects; o; o = o->next)
		if (o->kind == kind && o->context == current && ((memory *)o)->p == p)
			return (memory *)o;
	return NULL;
}

static int allocate(enum kind kind, size_t bytes, void **out) {
	memory *m = object_new(kind, sizeof *m);
	m->bytes = bytes;
	// Aligned to exactly 256 bytes, as the driver guarantees.
	m->block = aligned_alloc(ZONE, 2 * ZONE + (bytes + ZONE - 1) / ZONE * ZONE);
	if (!m->block) {
		object_free(m);
		return OUT_OF_MEMORY;
	}
	m->p = m->block + ZONE;
	memset(m->block, PATTERN, ZONE);
	memset(m->p, FRESH, bytes);
	memset(m->p + bytes, PATTERN, ZONE);
	*out = m->p;
	return SUCCESS;
}

static int deallocate(memory *m) {
	int damage = 0;
	for (int i = 0; i < ZONE; i++)
		damage += (m->block[i] != PATTERN) + (m->p[m->bytes + i] != PATTERN);
	if (damage) {
		fprintf(stderr, "stand-in: %d bytes next to a block of %zu bytes were overwritten\n", damage, m->bytes);
		current->device->lost = ILLEGAL_ADDRESS;
	}
	free(m->block);
	object_free(m);
	return current->device->lost;
}

// allocation_of returns the allocation that contains all of a range, or NULL.
static const memory *allocation_of(const void *p, size_t bytes) {
	for (object *o = objects; o; o = o->next) {
		const memory *m = (memory *)o;
		if (o->kind == MEMORY && o->context == current && (uintptr_t)p >= (uintptr_t)m->p &&
		    (uintptr_t)p + bytes <= (uintptr_t)m->p + m->bytes)
			return m;
	}
	return NULL;
}

int standin_device(const void *p, size_t bytes) {
	pthread_mutex_lock(&lock);
	return leave(allocation_of(p, bytes) != NULL);
}

int cuMemGetAddressRange_v2(unsigned long long *base, size_t *bytes, unsigned long long p) {
	const int status = enter();
	if (status)
		return status;
	const memory *m = allocation_of((void *)(uintptr_t)p, 1);
	if (!m)
		return leave(NOT_FOUND);
	*base = (uintptr_t)m->p;
	*bytes = m->bytes;
	return leave(SUCCESS);
}

int cuMemGetInfo_v2(size_t *free, size_t *all) {
	const int status = enter();
	if (status)
		return status;
	const size_t limit = setting("STANDIN_OOM", total), live = current->device->live;
	*free = limit > live ? limit - live : 0;
	*all = total;
	return leave(SUCCESS);
}

int cuMemAlloc_v2(unsigned long long *out, size_t bytes) {
	int status = enter();
	if (status)
		return status;
	status = unsafe_in_capture();
	if (!status && bytes == 0)
		status = INVALID_VALUE;
	if (!status && current->device->live + bytes > (size_t)setting("STANDIN_OOM", total))
		status = OUT_OF_MEMORY;
	void *p = NULL;
	if (!status)
		status = allocate(MEMORY, bytes, &p);
	if (!status)
		current->device->live += bytes;
	*out = (uintptr_t)p;
	return leave(status);
}

int cuMemFree_v2(unsigned long long p) {
	int status = enter();
	if (status)
		return status;
	memory *m = memory_of((void *)(uintptr_t)p, MEMORY);
	status = unsafe_in_capture();
	if (!status)
		status = drain_all();
	if (!status && !m)
		status = INVALID_VALUE;
	if (!status) {
		current->device->live -= m->bytes;
		status = deallocate(m);
	}
	return leave(status);
}

int cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
	int status = enter();
	if (status)
		return status;
	status = unsafe_in_capture();
	if (!status && (bytes == 0 || flags > 7))
		status = INVALID_VALUE;
	if (!status)
		status = allocate(HOST_MEMORY, bytes, out);
	return leave(status);
}

int cuMemFreeHost(void *p) {
	int status = enter();
	if (status)
		return status;
	memory *m = memory_of(p, HOST_MEMORY);
	status = unsafe_in_capture();
	if (!status)
		status = drain_all();
	if (!status)
		status = m ? deallocate(m) : INVALID_VALUE;
	return leave(status);
}
