//go:build ignore

// Stand-in for libcuda.so.1: see standin.go.

#include <stdio.h>
#include <stdlib.h>

static int setting(const char *name, int otherwise) {
	const char *value = getenv(name);
	return value ? atoi(value) : otherwise;
}

static int started;

int cuDriverGetVersion(int *version) {
	*version = setting("STANDIN_CUDA", 13000);
	return 0;
}

int cuInit(unsigned flags) {
	if (flags)
		return 1; // CUDA_ERROR_INVALID_VALUE
	if (setting("STANDIN_GPUS", 1) == 0)
		return 100; // CUDA_ERROR_NO_DEVICE
	started = 1;
	return 0;
}

int cuGetErrorString(int status, const char **text) {
	*text = status == 100 ? "no CUDA-capable device is detected" : "stand-in error";
	return 0;
}

int cuDeviceGetCount(int *count) {
	if (!started)
		return 3; // CUDA_ERROR_NOT_INITIALIZED
	*count = setting("STANDIN_GPUS", 1);
	return 0;
}

// Handles are not ordinals, so that a caller who confuses them is found out.
enum { HANDLE = 1000 };

int cuDeviceGet(int *device, int ordinal) {
	if (ordinal < 0 || ordinal >= setting("STANDIN_GPUS", 1))
		return 101; // CUDA_ERROR_INVALID_DEVICE
	*device = HANDLE + ordinal;
	return 0;
}

int cuDeviceGetName(char *name, int size, int device) {
	if (device < HANDLE)
		return 101;
	snprintf(name, size, "Stand-in %d", device - HANDLE);
	return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
	if (device < HANDLE)
		return 101;
	const int capability = setting("STANDIN_CAPABILITY", 90);
	switch (attribute) {
	case 75:
		*value = capability / 10;
		return 0;
	case 76:
		*value = capability % 10;
		return 0;
	}
	return 1;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
	if (device < HANDLE)
		return 101;
	*bytes = (size_t)80 << 30;
	return 0;
}
