//go:build gaudi && cgo && linux

#include "libsynapse.h"
#include "api.h"

octet_syn_status octet_syn_initialize(const octet_synapse *api) {
	TRY(api, synInitialize);
	return (octet_syn_status){0};
}

octet_syn_status octet_syn_version(const octet_synapse *api, char *out, size_t bytes) {
	TRY(api, synDriverGetVersion, out, (int)bytes);
	return (octet_syn_status){0};
}

void octet_synapse_text(const octet_synapse *api, int code, char *out, size_t bytes) {
	out[0] = 0;
	if (api->synStatusGetBriefDescription(code, out, bytes))
		out[0] = 0;
}

// SynapseAI returns synNoDeviceFound for some counts of 0.
octet_syn_status octet_syn_count(const octet_synapse *api, uint32_t *devices, uint32_t *gaudi2, uint32_t *gaudi3) {
	*devices = *gaudi2 = *gaudi3 = 0;
	int code = api->synDeviceGetCount(devices);
	if (code && code != synNoDeviceFound)
		return (octet_syn_status){"synDeviceGetCount", code};
	if (!*devices)
		return (octet_syn_status){0};
	code = api->synDeviceGetCountByDeviceType(gaudi2, synDeviceGaudi2);
	if (!code || code == synNoDeviceFound)
		code = api->synDeviceGetCountByDeviceType(gaudi3, synDeviceGaudi3);
	if (code && code != synNoDeviceFound)
		return (octet_syn_status){"synDeviceGetCountByDeviceType", code};
	return (octet_syn_status){0};
}

// acquire_any acquires a device of either model, Gaudi 3 first, as PyTorch's bridge does.
static octet_syn_status acquire_any(const octet_synapse *api, uint32_t *device) {
	const synDeviceType types[] = {synDeviceGaudi3, synDeviceGaudi2};
	octet_syn_status status = {"synDeviceAcquireByDeviceType", synNoDeviceFound};
	for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
		uint32_t count = 0;
		const int code = api->synDeviceGetCountByDeviceType(&count, types[i]);
		if (code && code != synNoDeviceFound)
			return (octet_syn_status){"synDeviceGetCountByDeviceType", code};
		if (!count)
			continue;
		status.code = api->synDeviceAcquireByDeviceType(device, types[i]);
		if (!status.code)
			break;
	}
	return status;
}

octet_syn_status octet_syn_acquire(const octet_synapse *api, int module, uint32_t *device) {
	if (module < 0)
		return acquire_any(api, device);
	TRY(api, synDeviceAcquireByModuleId, device, (synModuleId)module);
	return (octet_syn_status){0};
}

octet_syn_status octet_syn_release(const octet_synapse *api, uint32_t device) {
	TRY(api, synDeviceRelease, device);
	return (octet_syn_status){0};
}

octet_syn_status octet_syn_describe(const octet_synapse *api, uint32_t device, octet_syn_description *out) {
	const synDeviceAttribute attribute = DEVICE_ATTRIBUTE_ADDRESS_ALIGNMENT_SIZE;
	synDeviceInfoV2 info = {0};
	*out = (octet_syn_description){0};
	TRY(api, synDeviceGetInfoV2, device, &info);
	TRY(api, synDeviceGetName, out->name, sizeof out->name, device);
	TRY(api, synDeviceGetPCIBusId, out->bus, sizeof out->bus, device);
	TRY(api, synDeviceGetAttribute, &out->align, &attribute, 1, device);
	out->type = info.deviceType;
	return (octet_syn_status){0};
}

octet_syn_status octet_syn_memory(const octet_synapse *api, uint32_t device, uint64_t *free, uint64_t *total) {
	TRY(api, synDeviceGetMemoryInfo, device, free, total);
	return (octet_syn_status){0};
}

octet_syn_status octet_syn_alloc(const octet_synapse *api, uint32_t device, uint64_t bytes, uint64_t *out) {
	TRY(api, synDeviceMalloc, device, bytes, 0, 0, out);
	return (octet_syn_status){0};
}

octet_syn_status octet_syn_free(const octet_synapse *api, uint32_t device, uint64_t p) {
	TRY(api, synDeviceFree, device, p, 0);
	return (octet_syn_status){0};
}

octet_syn_status octet_syn_host_alloc(const octet_synapse *api, uint32_t device, uint64_t bytes, void **out) {
	TRY(api, synHostMalloc, device, bytes, 0, out);
	return (octet_syn_status){0};
}

octet_syn_status octet_syn_host_free(const octet_synapse *api, uint32_t device, void *p) {
	TRY(api, synHostFree, device, p, 0);
	return (octet_syn_status){0};
}
