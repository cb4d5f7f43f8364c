//go:build ignore

// Stand-in for libnvidia-ml.so.1: see standin.go. All but NVML's functions are static,
// because go-nvml makes the library's symbols global.

#include "standin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	SUCCESS = 0,
	UNINITIALIZED = 1,
	INVALID_ARGUMENT = 2,
	NOT_SUPPORTED = 3,
	NOT_FOUND = 6,
	DRIVER_NOT_LOADED = 9,
	GPU_IS_LOST = 15,
};

enum { MAX_GPUS = 8 };

// A handle is the address of one of these.
typedef struct {
	unsigned long long energy; // mJ
} gpu;

typedef struct {
	unsigned gpu, memory; // percent
} utilization;

typedef struct {
	unsigned long long total, free, used;
} memory;

static gpu gpus[MAX_GPUS];
static int started, readings;

static unsigned count(void) { return setting("STANDIN_NVML_GPUS", 1); }

// check returns the error of a call with a handle; name is the function's, without
// nvmlDeviceGet.
static int check(const gpu *device, const char *name) {
	if (!started)
		return UNINITIALIZED;
	if (device < gpus || device >= gpus + count())
		return INVALID_ARGUMENT;
	const char *unsupported = getenv("STANDIN_NVML_UNSUPPORTED");
	if (unsupported && (strstr(unsupported, name) || !strcmp(unsupported, "all")))
		return NOT_SUPPORTED;
	const long lost = setting("STANDIN_NVML_LOST", 0);
	return lost && readings >= lost ? GPU_IS_LOST : SUCCESS;
}

// ordinal returns a GPU's ordinal in CUDA. NVML's order is the reverse.
static int ordinal(const gpu *device) { return count() - 1 - (device - gpus); }

int nvmlInit_v2(void) {
	if (setting("STANDIN_NVML_INIT", SUCCESS))
		return setting("STANDIN_NVML_INIT", SUCCESS);
	if (started++ == 0)
		readings = 0;
	return SUCCESS;
}

int nvmlShutdown(void) {
	if (!started)
		return UNINITIALIZED;
	started--;
	return SUCCESS;
}

const char *nvmlErrorString(int status) {
	switch (status) {
	case SUCCESS: return "success";
	case NOT_SUPPORTED: return "not supported";
	case NOT_FOUND: return "not found";
	case DRIVER_NOT_LOADED: return "driver not loaded";
	case GPU_IS_LOST: return "GPU is lost";
	}
	return "stand-in error";
}

int nvmlSystemGetDriverVersion(char *version, unsigned size) {
	if (!started)
		return UNINITIALIZED;
	snprintf(version, size, "580.00.01");
	return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *n) {
	if (!started)
		return UNINITIALIZED;
	*n = count();
	return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
	if (!started)
		return UNINITIALIZED;
	if (index >= count())
		return INVALID_ARGUMENT;
	*device = &gpus[index];
	return SUCCESS;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) {
	unsigned domain, number, slot, function;
	if (!started)
		return UNINITIALIZED;
	if (sscanf(bus, "%x:%x:%x.%x", &domain, &number, &slot, &function) != 4)
		return INVALID_ARGUMENT;
	for (unsigned i = 0; i < count(); i++)
		if (domain == 0 && (int)number == FIRST_BUS + ordinal(&gpus[i]) && slot == 0 && function == 0) {
			*device = &gpus[i];
			return SUCCESS;
		}
	return NOT_FOUND;
}

int nvmlDeviceGetName(void *device, char *name, unsigned size) {
	const int status = check(device, "Name");
	if (!status)
		snprintf(name, size, "Managed stand-in");
	return status;
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
	const int status = check(device, "CudaComputeCapability");
	if (!status) {
		*major = 8;
		*minor = 9;
	}
	return status;
}

// Sensors. The utilization is the first call of a reading.

int nvmlDeviceGetUtilizationRates(void *device, utilization *u) {
	readings++;
	const int status = check(device, "UtilizationRates");
	if (!status) {
		u->gpu = 97;
		u->memory = 40;
	}
	return status;
}

int nvmlDeviceGetMemoryInfo(void *device, memory *m) {
	const int status = check(device, "MemoryInfo");
	if (!status) {
		m->total = 24ull << 30;
		m->used = 6ull << 30;
		m->free = m->total - m->used;
	}
	return status;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
	const int status = check(device, "PowerUsage");
	if (!status)
		*milliwatts = 300250 + 100000 * ordinal(device);
	return status;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
	const int status = check(device, "Temperature");
	if (sensor != 0) // NVML_TEMPERATURE_GPU
		return INVALID_ARGUMENT;
	if (!status)
		*celsius = 60 + ordinal(device);
	return status;
}

int nvmlDeviceGetClockInfo(void *device, int clock, unsigned *megahertz) {
	const int status = check(device, "ClockInfo");
	if (clock != 1) // NVML_CLOCK_SM
		return INVALID_ARGUMENT;
	if (!status)
		*megahertz = 1755;
	return status;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) {
	const int status = check(device, "CurrentClocksThrottleReasons");
	if (!status)
		*reasons = 4; // the power cap
	return status;
}

// The counter advances by 5 J per call.
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
	const int status = check(device, "TotalEnergyConsumption");
	if (!status)
		*millijoules = 7000000000ull + (((gpu *)device)->energy += 5000);
	return status;
}
