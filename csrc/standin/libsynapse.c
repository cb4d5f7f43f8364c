//go:build ignore

// Stand-in for libSynapse.so: the library's state, and the device. See
// standin.go.

#define _GNU_SOURCE
#include "libsynapse.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void complain(const char *format, ...) {
	va_list args;
	va_start(args, format);
	fprintf(stderr, "stand-in: ");
	vfprintf(stderr, format, args);
	fprintf(stderr, "\n");
	va_end(args);
}

// The lock is recursive: work that runs in a call may call the library.
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static bool started;
static status lost_status;

static struct {
	uint32_t type; // 0: no device is acquired
	int module;
	int claim; // socket whose name reserves the module
} device;

status enter(void) {
	pthread_mutex_lock(&lock);
	status s = SUCCESS;
	if (!started)
		s = UNINITIALIZED;
	else if (lost_status)
		s = SYNAPSE_TERMINATED;
	if (s)
		pthread_mutex_unlock(&lock);
	return s;
}

status leave(status s) {
	pthread_mutex_unlock(&lock);
	return s;
}

status lose(status s) {
	if (!lost_status)
		lost_status = s;
	return s;
}

status lost(void) { return lost_status; }

// Objects, in a hash table by address.

static object *buckets[1 << 12];

static object **bucket(const void *p) {
	return &buckets[((uintptr_t)p >> 4) * 0x9e3779b97f4a7c15u >> 52];
}

void *object_new(enum kind kind, size_t bytes) {
	object *o = calloc(1, bytes);
	o->kind = kind;
	o->next = *bucket(o);
	*bucket(o) = o;
	return o;
}

void *object_find(const void *handle, enum kind kind) {
	for (object *o = *bucket(handle); o; o = o->next)
		if (o == handle && o->kind == kind)
			return o;
	return NULL;
}

void object_free(void *dead) {
	for (object **o = bucket(dead); *o; o = &(*o)->next)
		if (*o == dead) {
			*o = (*o)->next;
			free(dead);
			return;
		}
}

void object_each(enum kind kind, void (*visit)(void *, void *), void *data) {
	for (size_t i = 0; i < sizeof buckets / sizeof *buckets; i++)
		for (object *o = buckets[i], *next; o; o = next) {
			next = o->next;
			if (o->kind == kind)
				visit(o, data);
		}
}

// The library.

// open_companions loads two libraries that SynapseAI loads at its start, if they exist. The
// stand-in's are empty, and may be in its own folder.
static void open_companions(void) {
	dlopen("libTPCFuser.so", RTLD_NOW);
	dlopen("libComplexGuid.so", RTLD_NOW);
}

status synInitialize(void) {
	pthread_mutex_lock(&lock);
	status s = started && setting("HABANA_DISABLE_DOUBLE_SYN_INITIALIZE", 0) ? ALREADY_INITIALIZED : SUCCESS;
	if (!started) {
		s = setting("STANDIN_SYNAPSE", SUCCESS);
		started = s == SUCCESS;
		open_companions();
	}
	return leave(s);
}

static void leak(void *o, void *data) {
	static const char *const names[] = {"device memory", "host memory", "stream", "event", "graph", "section", "tensor", "recipe", "communicator"};
	complain("%s not freed before the end of its device", names[((object *)o)->kind]);
	++*(int *)data;
}

// leaks lists the device's objects on stderr and returns their number.
static int leaks(void) {
	static const enum kind kinds[] = {MEMORY, HOST_MEMORY, STREAM, EVENT, COMM};
	int n = 0;
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		object_each(kinds[i], leak, &n);
	return n;
}

static void release(void) {
	close(device.claim);
	device.type = 0;
}

status synDriverGetVersion(char *version, const int size) { // needs no synInitialize (synapse_api.h)
	if (!version || size <= 0)
		return INVALID_ARGUMENT;
	const char *name = getenv("STANDIN_DRIVER");
	snprintf(version, size, "%s", name ? name : "1.24.0-standin");
	return SUCCESS;
}

status synStatusGetBriefDescription(const status s, char *text, const size_t size) {
	static const char *const texts[] = {
		[SUCCESS] = "Success",
		[INVALID_ARGUMENT] = "Invalid argument",
		[OUT_OF_HOST_MEMORY] = "Out of Host memory",
		[OUT_OF_DEVICE_MEMORY] = "Out of Device memory (OOM)",
		[OBJECT_ALREADY_INITIALIZED] = "Object already initialized",
		[NO_DEVICE_FOUND] = "No device found",
		[DEVICE_TYPE_MISMATCH] = "Device type mismatch",
		[UNSUPPORTED] = "Unsupported",
		[DEVICE_ALREADY_ACQUIRED] = "Device already acquired",
		[NAME_IS_ALREADY_USED] = "Name is already used",
		[BUSY] = "Busy",
		[FAIL] = "synFail",
		[UNINITIALIZED] = "Uninitialized",
		[ALREADY_INITIALIZED] = "Already initialized",
		[FAILED_SECTION_VALIDATION] = "Sections validation failed",
		[SYNAPSE_TERMINATED] = "Synapse terminated",
		[INVALID_EVENT_HANDLE] = "Invalid event handle",
		[MAPPING_NOT_FOUND] = "Mapping not found",
		[INVALID_TENSOR_PROPERTIES] = "Invalid tensor properties",
		[FAIL_HCCL] = "HCCL failure",
		[FAILED_TO_COLLECT_TIME] = "Failed to collect time",
	};
	if (!text || !size)
		return INVALID_ARGUMENT;
	const bool known = s < sizeof texts / sizeof *texts && texts[s];
	snprintf(text, size, "%s", known ? texts[s] : "stand-in status");
	return SUCCESS;
}

// Devices, Gaudi2 first. Processes that load the same file of the library share a machine.
// A process reserves a module by binding a socket to its name, until the process ends.

static uint32_t count(uint32_t type) {
	return type == GAUDI2 ? setting("STANDIN_GAUDI2", 1) : type == GAUDI3 ? setting("STANDIN_GAUDI3", 0) : 0;
}

static uint32_t count_all(void) { return count(GAUDI2) + count(GAUDI3); }

bool is_gaudi3(uint32_t type) { return type == GAUDI3; }
uint64_t alignment(uint32_t type) { return type == GAUDI3 ? 256 : 128; }
bool is_device(uint32_t id) { return device.type && id == 0; }
uint32_t device_type(void) { return device.type; }

// claim reserves a module for this process; -1: another process has it.
static int claim(int module) {
	Dl_info info;
	const char *machine = dladdr((void *)synInitialize, &info) ? info.dli_fname : "";
	uint64_t hash = 0xcbf29ce484222325u; // FNV-1a
	for (; *machine; machine++)
		hash = (hash ^ (unsigned char)*machine) * 0x100000001b3u;
	struct sockaddr_un address = {.sun_family = AF_UNIX}; // a name that begins with 0 is not in the file system
	const int n = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "standin-gaudi-%016lx-%d", (unsigned long)hash, module);
	const int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (s >= 0 && bind(s, (struct sockaddr *)&address, offsetof(struct sockaddr_un, sun_path) + 1 + n)) {
		close(s);
		return -1;
	}
	return s;
}

static status acquire(uint32_t *id, int module) {
	if (device.type)
		return DEVICE_ALREADY_ACQUIRED;
	const int socket_fd = claim(module);
	if (socket_fd < 0)
		return NO_DEVICE_FOUND;
	device.type = module < (int)count(GAUDI2) ? GAUDI2 : GAUDI3;
	device.module = module;
	device.claim = socket_fd;
	*id = 0;
	return SUCCESS;
}

status synDeviceGetCount(uint32_t *n) {
	ENTER();
	*n = count_all();
	return leave(*n ? SUCCESS : NO_DEVICE_FOUND);
}

status synDeviceGetCountByDeviceType(uint32_t *n, const uint32_t type) {
	ENTER();
	*n = count(type);
	return leave(SUCCESS);
}

status synDeviceAcquireByModuleId(uint32_t *id, const uint32_t module) {
	ENTER();
	if (!id)
		return leave(INVALID_ARGUMENT);
	return leave(module < count_all() ? acquire(id, module) : NO_DEVICE_FOUND);
}

static status acquire_between(uint32_t *id, uint32_t from, uint32_t to) {
	if (!id)
		return INVALID_ARGUMENT;
	status s = NO_DEVICE_FOUND;
	for (uint32_t module = from; module < to && s == NO_DEVICE_FOUND; module++)
		s = acquire(id, module);
	return s;
}

status synDeviceAcquireByDeviceType(uint32_t *id, const uint32_t type) {
	ENTER();
	const uint32_t first = type == GAUDI3 ? count(GAUDI2) : 0;
	return leave(acquire_between(id, first, first + count(type)));
}

status synDeviceRelease(const uint32_t id) {
	ENTER();
	if (!is_device(id))
		return leave(NO_DEVICE_FOUND);
	finish_all();
	if (lost_status)
		return leave(SYNAPSE_TERMINATED);
	// SynapseAI frees the remaining objects. The stand-in fails.
	const int left = leaks();
	release();
	return leave(left ? BUSY : SUCCESS);
}

status synDeviceGetName(char *name, const int size, const uint32_t id) {
	ENTER();
	if (!is_device(id))
		return leave(NO_DEVICE_FOUND);
	snprintf(name, size, "Stand-in Gaudi%d %d", device.type == GAUDI3 ? 3 : 2, device.module);
	return leave(SUCCESS);
}

status synDeviceGetPCIBusId(char *bus, const int size, const uint32_t id) {
	ENTER();
	if (!is_device(id))
		return leave(NO_DEVICE_FOUND);
	snprintf(bus, size, "0000:%02x:00.0", device.module);
	return leave(SUCCESS);
}

enum { ADDRESS_ALIGNMENT_SIZE = 11 }; // synDeviceAttribute

status synDeviceGetAttribute(uint64_t *values, const uint32_t *names, const unsigned n, const uint32_t id) {
	ENTER();
	if (!is_device(id))
		return leave(NO_DEVICE_FOUND);
	if (n != 1 || names[0] != ADDRESS_ALIGNMENT_SIZE) // there are others
		return leave(INVALID_ARGUMENT);
	*values = alignment(device.type);
	return leave(SUCCESS);
}

// synDeviceInfoV2.
typedef struct {
	uint64_t sram_base, dram_base;
	uint32_t sram_size;
	uint64_t dram_size, tpc_mask;
	uint8_t dram_enabled;
	uint32_t id, fd, type;
	uint8_t index;
	uint64_t reserved;
} info_v2;

_Static_assert(sizeof(info_v2) == 72 && offsetof(info_v2, type) == 52, "synDeviceInfoV2");

status synDeviceGetInfoV2(const uint32_t id, info_v2 *info) {
	ENTER();
	if (!is_device(id))
		return leave(NO_DEVICE_FOUND);
	*info = (info_v2){.type = device.type};
	return leave(SUCCESS);
}
