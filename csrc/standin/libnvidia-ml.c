//go:build ignore

// Stand-in for libnvidia-ml.so.1, one GPU: see standin.go.

#include <stdio.h>

typedef struct {
	unsigned long long total, free, used;
} memory;

static int gpu;

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int status) { return status ? "stand-in error" : "success"; }

int nvmlSystemGetDriverVersion(char *version, unsigned size) {
	snprintf(version, size, "580.00.01");
	return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
	*count = 1;
	return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
	if (index)
		return 2; // NVML_ERROR_INVALID_ARGUMENT
	*device = &gpu;
	return 0;
}

int nvmlDeviceGetName(void *device, char *name, unsigned size) {
	if (device != &gpu)
		return 2;
	snprintf(name, size, "Managed stand-in");
	return 0;
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
	if (device != &gpu)
		return 2;
	*major = 8;
	*minor = 9;
	return 0;
}

int nvmlDeviceGetMemoryInfo(void *device, memory *m) {
	if (device != &gpu)
		return 2;
	m->total = 24ull << 30;
	m->free = m->total;
	m->used = 0;
	return 0;
}
