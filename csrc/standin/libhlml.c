//go:build ignore

// Stand-in for libhlml.so, with devices at the bus addresses of the stand-in for
// SynapseAI, 0000:00:00.0 to 0000:07:00.0: see standin.go. A function that
// STANDIN_HLML_SILENT, STANDIN_HLML_ODD or STANDIN_HLML_LOST names, or every function for
// "all", returns that it is not supported, an unknown error or a lost device.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// hlml_return_t.
enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, LOST = 15, UNKNOWN = 49 };

typedef struct {
	unsigned long long free, total, used;
} memory;

static int gaudi;
static int started;
static unsigned long long energy; // mJ

static int names(const char *variable, const char *function) {
	const char *value = getenv(variable);
	return value && (!strcmp(value, function) || !strcmp(value, "all"));
}

static int check(const char *function, const void *device) {
	if (!started)
		return UNINITIALIZED;
	if (device != &gaudi)
		return INVALID_ARGUMENT;
	if (names("STANDIN_HLML_SILENT", function))
		return NOT_SUPPORTED;
	if (names("STANDIN_HLML_ODD", function))
		return UNKNOWN;
	return names("STANDIN_HLML_LOST", function) ? LOST : SUCCESS;
}

#define CHECK(device) \
	do { \
		const int refused = check(__func__, device); \
		if (refused) \
			return refused; \
	} while (0)

int hlml_init(void) {
	started++;
	return SUCCESS;
}

int hlml_shutdown(void) {
	if (!started)
		return UNINITIALIZED;
	started--;
	return SUCCESS;
}

int hlml_device_get_handle_by_pci_bus_id(const char *bus, void **device) {
	if (!started)
		return UNINITIALIZED;
	unsigned number;
	if (sscanf(bus, "0000:%2x:00.0", &number) != 1 || number > 7)
		return NOT_FOUND;
	*device = &gaudi;
	return SUCCESS;
}

int hlml_device_get_utilization_rates(void *device, unsigned *percent) {
	CHECK(device);
	*percent = 75;
	return SUCCESS;
}

int hlml_device_get_memory_info(void *device, memory *m) {
	CHECK(device);
	*m = (memory){.free = 90ull << 30, .total = 96ull << 30, .used = 6ull << 30};
	return SUCCESS;
}

int hlml_device_get_power_usage(void *device, unsigned *milliwatts) {
	CHECK(device);
	*milliwatts = 412500;
	return SUCCESS;
}

// The counter advances by 5 J per call.
int hlml_device_get_total_energy_consumption(void *device, unsigned long long *millijoules) {
	CHECK(device);
	*millijoules = 5000000000000 + (energy += 5000); // more than 32 bits
	return SUCCESS;
}

int hlml_device_get_temperature(void *device, int sensor, unsigned *degrees) {
	CHECK(device);
	*degrees = sensor ? 0 : 62;
	return SUCCESS;
}

int hlml_device_get_clock_info(void *device, int clock, unsigned *megahertz) {
	CHECK(device);
	*megahertz = clock ? 0 : 1500;
	return SUCCESS;
}

int hlml_device_get_current_clocks_throttle_reasons(void *device, unsigned long long *reasons) {
	CHECK(device);
	*reasons = 2; // heat
	return SUCCESS;
}
