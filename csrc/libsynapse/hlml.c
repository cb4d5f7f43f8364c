//go:build gaudi && cgo && linux

#include "libsynapse.h"
#include "api.h"

#include <stdbool.h>

octet_syn_status octet_hlml_open(const octet_hlml *api, const char *bus, octet_syn_handle *out) {
	TRY(api, hlml_init);
	hlml_device_t device;
	const int code = api->hlml_device_get_handle_by_pci_bus_id(bus, &device);
	if (code) {
		api->hlml_shutdown();
		return (octet_syn_status){"hlml_device_get_handle_by_pci_bus_id", code};
	}
	*out = (octet_syn_handle)device;
	return (octet_syn_status){0};
}

octet_syn_status octet_hlml_close(const octet_hlml *api) {
	TRY(api, hlml_shutdown);
	return (octet_syn_status){0};
}

// ASK queries one value, if the library has the function. A value stays unknown if the
// device does not support it, has no data for it or returns another error, because one
// value must not prevent the others. Only a lost device is an error.
#define ASK(to, value, name, ...) \
	do { \
		if (!api->name) \
			break; \
		const int code = (int)api->name(__VA_ARGS__); \
		if (code == HLML_ERROR_AIP_IS_LOST) \
			return (octet_syn_status){#name, code}; \
		if (code && code != HLML_ERROR_NOT_SUPPORTED && code != HLML_ERROR_NO_DATA && !odd.code) \
			odd = (octet_syn_status){#name, code}; \
		if (code) \
			break; \
		(to) = (octet_syn_answer){(uint64_t)(value), 1}; \
		any = true; \
	} while (0)

octet_syn_status octet_hlml_read(const octet_hlml *api, octet_syn_handle device, octet_syn_reading *out) {
	hlml_device_t d = (hlml_device_t)device;
	hlml_utilization_t utilization;
	hlml_memory_t memory;
	unsigned number;
	unsigned long long wide;
	octet_syn_status odd = {0}; // the first other error, returned if no value is known
	bool any = false;
	*out = (octet_syn_reading){0};
	ASK(out->utilization, utilization.aip, hlml_device_get_utilization_rates, d, &utilization);
	ASK(out->memory_used, memory.used, hlml_device_get_memory_info, d, &memory);
	if (out->memory_used.known)
		out->memory_total = (octet_syn_answer){memory.total, 1};
	ASK(out->power, number, hlml_device_get_power_usage, d, &number);
	ASK(out->energy, wide, hlml_device_get_total_energy_consumption, d, &wide);
	ASK(out->temperature, number, hlml_device_get_temperature, d, HLML_TEMPERATURE_ON_AIP, &number);
	ASK(out->clock, number, hlml_device_get_clock_info, d, HLML_CLOCK_SOC, &number);
	ASK(out->throttle, wide, hlml_device_get_current_clocks_throttle_reasons, d, &wide);
	return any ? (octet_syn_status){0} : odd;
}
