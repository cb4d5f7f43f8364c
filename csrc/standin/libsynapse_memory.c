//go:build ignore

// Stand-in for libSynapse.so: memory of the device and of the host, between red zones that
// are checked when it is freed. New memory holds bytes that are NaN in every float format.

#define _GNU_SOURCE
#include "libsynapse.h"

#include <stdlib.h>
#include <string.h>

enum { ZONE = 256, PATTERN = 0xa5, FRESH = 0xff };

typedef struct memory {
	object object;
	struct memory *next;      // of the same kind
	unsigned char *block, *p;
	uint64_t zone, bytes;
} memory;

static memory *first[2]; // of the device and of the host
static uint64_t live;    // allocated bytes of the device

static memory **list(enum kind kind) { return &first[kind == HOST_MEMORY]; }

static memory *memory_new(enum kind kind, unsigned char *block, unsigned char *p, uint64_t zone, uint64_t bytes) {
	memory *m = object_new(kind, sizeof *m);
	m->block = block;
	m->p = p;
	m->zone = zone;
	m->bytes = bytes;
	m->next = *list(kind);
	*list(kind) = m;
	return m;
}

static void memory_free(memory *dead) {
	for (memory **m = list(dead->object.kind); *m; m = &(*m)->next)
		if (*m == dead) {
			*m = dead->next;
			break;
		}
	object_free(dead);
}

// Device addresses are host addresses plus a bit that no address of a process has.
static const uint64_t device_bit = 1ull << 60;

static uint64_t device_address(const memory *m) { return (uintptr_t)m->p | device_bit; }

static memory *memory_around(enum kind kind, const void *from, uint64_t bytes) {
	for (memory *m = *list(kind); m; m = m->next) {
		const uint64_t offset = (uintptr_t)from - (uintptr_t)m->p;
		if (offset <= m->bytes && bytes <= m->bytes - offset)
			return m;
	}
	return NULL;
}

void *device_memory(uint64_t address, uint64_t bytes) {
	void *p = (void *)(uintptr_t)(address & ~device_bit);
	return address & device_bit && memory_around(MEMORY, p, bytes) ? p : NULL;
}

bool host_memory(const void *p, uint64_t bytes) { return memory_around(HOST_MEMORY, p, bytes) != NULL; }

// allocate aligns the memory to exactly the device's alignment.
static memory *allocate(enum kind kind, uint64_t bytes) {
	const uint64_t zone = ZONE + alignment(device_type()) % 256;
	unsigned char *block = aligned_alloc(256, (2 * zone + bytes + 255) / 256 * 256);
	if (!block)
		return NULL;
	memory *m = memory_new(kind, block, block + zone, zone, bytes);
	memset(block, PATTERN, zone);
	memset(m->p, FRESH, bytes);
	memset(m->p + bytes, PATTERN, zone);
	return m;
}

static status deallocate(memory *m) {
	int damage = 0;
	for (uint64_t i = 0; i < m->zone; i++)
		damage += (m->block[i] != PATTERN) + (m->p[m->bytes + i] != PATTERN);
	free(m->block);
	if (damage)
		complain("%d bytes next to a block of %lu bytes were overwritten", damage, (unsigned long)m->bytes);
	memory_free(m);
	return damage ? lose(FAIL) : SUCCESS;
}

static uint64_t total(void) {
	const uint64_t all = (device_type() == GAUDI3 ? 128ull : 96ull) << 30;
	const uint64_t limit = setting("STANDIN_OOM", all);
	return limit < all ? limit : all;
}

status synDeviceGetMemoryInfo(const uint32_t id, uint64_t *free, uint64_t *all) {
	ENTER();
	if (!is_device(id))
		return leave(NO_DEVICE_FOUND);
	*all = total();
	*free = total() - live;
	return leave(SUCCESS);
}

status synDeviceMalloc(const uint32_t id, const uint64_t size, uint64_t wanted, const uint32_t flags, uint64_t *buffer) {
	ENTER();
	if (!is_device(id))
		return leave(NO_DEVICE_FOUND);
	if (!size || flags || !buffer)
		return leave(INVALID_ARGUMENT);
	if (size > total() - live)
		return leave(OUT_OF_DEVICE_MEMORY);
	memory *m = allocate(MEMORY, size);
	if (!m)
		return leave(OUT_OF_DEVICE_MEMORY);
	live += size;
	*buffer = device_address(m);
	return leave(SUCCESS);
}

static memory *memory_at(enum kind kind, const void *p) {
	for (memory *m = *list(kind); m; m = m->next)
		if (m->p == p)
			return m;
	return NULL;
}

// synDeviceFree waits for no work: pending work that uses the memory loses the device.
status synDeviceFree(const uint32_t id, const uint64_t buffer, const uint32_t flags) {
	ENTER();
	if (!is_device(id))
		return leave(NO_DEVICE_FOUND);
	memory *m = buffer & device_bit ? memory_at(MEMORY, (void *)(uintptr_t)(buffer & ~device_bit)) : NULL;
	if (!m || flags)
		return leave(INVALID_ARGUMENT);
	live -= m->bytes;
	return leave(deallocate(m));
}

status synHostMalloc(const uint32_t id, const uint64_t size, const uint32_t flags, void **buffer) {
	ENTER();
	if (!is_device(id))
		return leave(NO_DEVICE_FOUND);
	if (!size || flags || !buffer)
		return leave(INVALID_ARGUMENT);
	memory *m = allocate(HOST_MEMORY, size);
	if (!m)
		return leave(OUT_OF_HOST_MEMORY);
	*buffer = m->p;
	return leave(SUCCESS);
}

status synHostFree(const uint32_t id, const void *buffer, const uint32_t flags) {
	ENTER();
	if (!is_device(id))
		return leave(NO_DEVICE_FOUND);
	memory *m = memory_at(HOST_MEMORY, buffer);
	return leave(m && !flags ? deallocate(m) : INVALID_ARGUMENT);
}
