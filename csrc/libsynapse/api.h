// Octet's own declarations of the part of Habana's interfaces that it uses: a build needs
// no SynapseAI headers, which are for C++ anyway. Constants, structures and functions are
// X-macro lists, so that the loader's tables, the enumerations below and the comparison
// with Habana's own headers (testdata/headers.cpp) come from the same lines.
//
// Sources: synapse_common_types.h, synapse_api_types.h, synapse_api.h, hccl.h,
// hccl_types.h and hlml.h.
#ifndef OCTET_SYNAPSE_API_H
#define OCTET_SYNAPSE_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef OCTET_GAUDI_HEADERS
// Habana's enumerations are as wide as int on every platform of SynapseAI.
typedef int synStatus, synDeviceType, synDataType, synTensorType, synGeometryType, synDmaDir, synDeviceAttribute;
typedef uint32_t synDeviceId, synModuleId;
typedef uint64_t synNodeId;
typedef struct InternalStreamHandle *synStreamHandle;
typedef struct EventInterfaceExternal *synEventHandle;
typedef struct InternalGraphHandle *synGraphHandle;
typedef struct SectionHandleExternal *synSectionHandle;
typedef struct syn_tensor_internal *synTensor;
typedef struct InternalRecipeHandle *synRecipeHandle;

#define HABANA_DIM_MAX 25 // length of arrays with one element per dimension

typedef struct {
	uint64_t sizes[HABANA_DIM_MAX];
	uint32_t dims;
} synTensorGeometry;

typedef struct {
	const char *tensorName;
	uint64_t pTensorAddress;
	synTensorType tensorType;
	uint64_t tensorSize[HABANA_DIM_MAX]; // for dynamic shapes
	uint64_t tensorId;
} synLaunchTensorInfo;

typedef struct {
	uint64_t sramBaseAddress, dramBaseAddress;
	uint32_t sramSize;
	uint64_t dramSize, tpcEnabledMask;
	uint8_t dramEnabled;
	uint32_t deviceId, fd;
	synDeviceType deviceType;
	uint8_t deviceIndex;
	uint64_t reserved;
} synDeviceInfoV2;

typedef void *octet_syn_stream; // synStreamHandle in older headers of HCCL
typedef int hcclResult_t, hcclDataType_t, hcclRedOp_t;
typedef void *hcclComm_t;
typedef struct {
	uint8_t internal[1024];
	size_t length;
} hcclUniqueId;

typedef int hlml_return_t, hlml_clock_type_t, hlml_temperature_sensors_t;
typedef void *hlml_device_t;
typedef struct {
	unsigned aip; // percent
} hlml_utilization_t;
typedef struct {
	unsigned long long free, total, used;
} hlml_memory_t;
#endif

// clang-format off
#define OCTET_SYNAPSE_CONSTANTS(X) \
	X(synSuccess, 0) \
	X(synNoDeviceFound, 8) \
	X(synDeviceGaudi2, 4) \
	X(synDeviceGaudi3, 5) \
	X(DATA_TENSOR, 0) \
	X(synGeometryMinSizes, 0) \
	X(synGeometrySizes, 1) \
	X(HOST_TO_DRAM, 0) \
	X(DRAM_TO_HOST, 1) \
	X(DRAM_TO_DRAM, 2) \
	X(DEVICE_ATTRIBUTE_ADDRESS_ALIGNMENT_SIZE, 11) \
	X(EVENT_COLLECT_TIME, 1)

#define OCTET_HCCL_CONSTANTS(X) \
	X(hcclInt32, 2) \
	X(hcclUint32, 3) \
	X(hcclFloat16, 6) \
	X(hcclFloat32, 7) \
	X(hcclBfloat16, 9) \
	X(hcclSum, 0) \
	X(hcclMax, 3)

#define OCTET_HLML_CONSTANTS(X) \
	X(HLML_ERROR_NOT_SUPPORTED, 3) \
	X(HLML_ERROR_AIP_IS_LOST, 15) \
	X(HLML_ERROR_NO_DATA, 21) \
	X(HLML_CLOCK_SOC, 0) \
	X(HLML_TEMPERATURE_ON_AIP, 0)

// The id of no tensor.
#define OCTET_INVALID_ID 0xFFFFFFFFFFFFFFFFull

// Sizes, and offsets of the fields used here.
#define OCTET_SYNAPSE_SIZES(X) \
	X(synTensorGeometry, 208) \
	X(synLaunchTensorInfo, 232) \
	X(synDeviceInfoV2, 72)
#define OCTET_SYNAPSE_OFFSETS(X) \
	X(synTensorGeometry, sizes, 0) \
	X(synTensorGeometry, dims, 200) \
	X(synLaunchTensorInfo, tensorName, 0) \
	X(synLaunchTensorInfo, pTensorAddress, 8) \
	X(synLaunchTensorInfo, tensorType, 16) \
	X(synLaunchTensorInfo, tensorSize, 24) \
	X(synLaunchTensorInfo, tensorId, 224) \
	X(synDeviceInfoV2, deviceType, 52)
#define OCTET_HCCL_SIZES(X) \
	X(hcclUniqueId, 1032)
#define OCTET_HCCL_OFFSETS(X) \
	X(hcclUniqueId, internal, 0) \
	X(hcclUniqueId, length, 1024)
#define OCTET_HLML_SIZES(X) \
	X(hlml_utilization_t, 4) \
	X(hlml_memory_t, 24)
#define OCTET_HLML_OFFSETS(X) \
	X(hlml_memory_t, total, 8) \
	X(hlml_memory_t, used, 16)

#define OCTET_SYNAPSE_FUNCTIONS(X) \
	X(synStatus, synInitialize, (void)) \
	X(synStatus, synStatusGetBriefDescription, (synStatus, char *, size_t)) \
	X(synStatus, synDriverGetVersion, (char *, int)) \
	X(synStatus, synDeviceGetCount, (uint32_t *)) \
	X(synStatus, synDeviceGetCountByDeviceType, (uint32_t *, synDeviceType)) \
	X(synStatus, synDeviceAcquireByDeviceType, (synDeviceId *, synDeviceType)) \
	X(synStatus, synDeviceAcquireByModuleId, (synDeviceId *, synModuleId)) \
	X(synStatus, synDeviceRelease, (synDeviceId)) \
	X(synStatus, synDeviceGetName, (char *, int, synDeviceId)) \
	X(synStatus, synDeviceGetPCIBusId, (char *, int, synDeviceId)) \
	X(synStatus, synDeviceGetInfoV2, (synDeviceId, synDeviceInfoV2 *)) \
	X(synStatus, synDeviceGetAttribute, (uint64_t *, const synDeviceAttribute *, unsigned, synDeviceId)) \
	X(synStatus, synDeviceGetMemoryInfo, (synDeviceId, uint64_t *, uint64_t *)) \
	X(synStatus, synDeviceMalloc, (synDeviceId, uint64_t, uint64_t, uint32_t, uint64_t *)) \
	X(synStatus, synDeviceFree, (synDeviceId, uint64_t, uint32_t)) \
	X(synStatus, synHostMalloc, (synDeviceId, uint64_t, uint32_t, void **)) \
	X(synStatus, synHostFree, (synDeviceId, const void *, uint32_t)) \
	X(synStatus, synMemCopyAsync, (synStreamHandle, uint64_t, uint64_t, uint64_t, synDmaDir)) \
	X(synStatus, synMemsetD8Async, (uint64_t, unsigned char, size_t, synStreamHandle)) \
	X(synStatus, synStreamCreateGeneric, (synStreamHandle *, synDeviceId, uint32_t)) \
	X(synStatus, synStreamDestroy, (synStreamHandle)) \
	X(synStatus, synStreamSynchronize, (synStreamHandle)) \
	X(synStatus, synEventCreate, (synEventHandle *, synDeviceId, uint32_t)) \
	X(synStatus, synEventDestroy, (synEventHandle)) \
	X(synStatus, synEventRecord, (synEventHandle, synStreamHandle)) \
	X(synStatus, synEventSynchronize, (synEventHandle)) \
	X(synStatus, synEventElapsedTime, (uint64_t *, synEventHandle, synEventHandle)) \
	X(synStatus, synGraphCreate, (synGraphHandle *, synDeviceType)) \
	X(synStatus, synGraphDestroy, (synGraphHandle)) \
	X(synStatus, synSectionCreate, (synSectionHandle *, uint64_t, synGraphHandle)) \
	X(synStatus, synSectionSetPersistent, (synSectionHandle, bool)) \
	X(synStatus, synTensorHandleCreate, (synTensor *, synGraphHandle, synTensorType, const char *)) \
	X(synStatus, synTensorSetGeometry, (synTensor, const synTensorGeometry *, synGeometryType)) \
	X(synStatus, synTensorSetDeviceDataType, (synTensor, synDataType)) \
	X(synStatus, synTensorSetHostPtr, (synTensor, void *, uint64_t, synDataType, bool)) \
	X(synStatus, synTensorAssignToSection, (synTensor, synSectionHandle, uint64_t)) \
	X(synStatus, synNodeCreateWithId, (synGraphHandle, const synTensor *, const synTensor *, uint32_t, uint32_t, const void *, unsigned, const char *, const char *, synNodeId *, const char **, const char **)) \
	X(synStatus, synNodeSetDeterministic, (synGraphHandle, synNodeId, bool)) \
	X(synStatus, synNodeDependencySet, (synGraphHandle, const synNodeId *, const synNodeId *, uint32_t, uint32_t)) \
	X(synStatus, synGraphCompile, (synRecipeHandle *, synGraphHandle, const char *, const char *)) \
	X(synStatus, synRecipeSerialize, (synRecipeHandle, const char *)) \
	X(synStatus, synRecipeDeSerialize, (synRecipeHandle *, const char *)) \
	X(synStatus, synRecipeDestroy, (synRecipeHandle)) \
	X(synStatus, synWorkspaceGetSize, (uint64_t *, synRecipeHandle)) \
	X(synStatus, synTensorRetrieveIds, (synRecipeHandle, const char **, uint64_t *, uint32_t)) \
	X(synStatus, synLaunch, (synStreamHandle, const synLaunchTensorInfo *, uint32_t, uint64_t, synRecipeHandle, uint32_t))

// In the same library, and needed only for several devices.
#define OCTET_HCCL_FUNCTIONS(X) \
	X(const char *, hcclGetErrorString, (hcclResult_t)) \
	X(hcclResult_t, hcclGetUniqueId, (hcclUniqueId *)) \
	X(hcclResult_t, hcclCommInitRank, (hcclComm_t *, int, hcclUniqueId, int)) \
	X(hcclResult_t, hcclCommDestroy, (hcclComm_t)) \
	X(hcclResult_t, hcclAllReduce, (const void *, void *, size_t, hcclDataType_t, hcclRedOp_t, hcclComm_t, octet_syn_stream)) \
	X(hcclResult_t, hcclReduceScatter, (const void *, void *, size_t, hcclDataType_t, hcclRedOp_t, hcclComm_t, octet_syn_stream)) \
	X(hcclResult_t, hcclAllGather, (const void *, void *, size_t, hcclDataType_t, hcclComm_t, octet_syn_stream)) \
	X(hcclResult_t, hcclAlltoAll, (const void *, void *, size_t, hcclDataType_t, hcclComm_t, octet_syn_stream)) \
	X(hcclResult_t, hcclBroadcast, (const void *, void *, size_t, hcclDataType_t, int, hcclComm_t, octet_syn_stream))

#define OCTET_HLML_FUNCTIONS(X) \
	X(hlml_return_t, hlml_init, (void)) \
	X(hlml_return_t, hlml_shutdown, (void)) \
	X(hlml_return_t, hlml_device_get_handle_by_pci_bus_id, (const char *, hlml_device_t *))

// Sensor queries. An older library may lack some of them.
#define OCTET_HLML_OPTIONAL(X) \
	X(hlml_return_t, hlml_device_get_utilization_rates, (hlml_device_t, hlml_utilization_t *)) \
	X(hlml_return_t, hlml_device_get_memory_info, (hlml_device_t, hlml_memory_t *)) \
	X(hlml_return_t, hlml_device_get_power_usage, (hlml_device_t, unsigned *)) \
	X(hlml_return_t, hlml_device_get_total_energy_consumption, (hlml_device_t, unsigned long long *)) \
	X(hlml_return_t, hlml_device_get_temperature, (hlml_device_t, hlml_temperature_sensors_t, unsigned *)) \
	X(hlml_return_t, hlml_device_get_clock_info, (hlml_device_t, hlml_clock_type_t, unsigned *)) \
	X(hlml_return_t, hlml_device_get_current_clocks_throttle_reasons, (hlml_device_t, unsigned long long *))
// clang-format on

#ifndef OCTET_GAUDI_HEADERS
#define X(name, value) name = value,
enum { OCTET_SYNAPSE_CONSTANTS(X) OCTET_HCCL_CONSTANTS(X) OCTET_HLML_CONSTANTS(X) };
#undef X

#define X(type, bytes) _Static_assert(sizeof(type) == bytes, #type);
OCTET_SYNAPSE_SIZES(X)
OCTET_HCCL_SIZES(X)
OCTET_HLML_SIZES(X)
#undef X
#define X(type, field, at) _Static_assert(offsetof(type, field) == at, #type "." #field);
OCTET_SYNAPSE_OFFSETS(X)
OCTET_HCCL_OFFSETS(X)
OCTET_HLML_OFFSETS(X)
#undef X

// A table has one pointer per function, in the order of the lists.
#define X(result, name, parameters) result(*name) parameters;
typedef struct octet_synapse {
	OCTET_SYNAPSE_FUNCTIONS(X)
	OCTET_HCCL_FUNCTIONS(X)
} octet_synapse;
typedef struct octet_hlml {
	OCTET_HLML_FUNCTIONS(X)
	OCTET_HLML_OPTIONAL(X)
} octet_hlml;
#undef X

// The names of a table's functions for the loader, in the order of the table.
#define OCTET_NAME(result, name, parameters) " " #name
#define OCTET_SYNAPSE_NAMES OCTET_SYNAPSE_FUNCTIONS(OCTET_NAME)
#define OCTET_HCCL_NAMES OCTET_HCCL_FUNCTIONS(OCTET_NAME)
#define OCTET_HLML_NAMES OCTET_HLML_FUNCTIONS(OCTET_NAME)
#define OCTET_HLML_OPTIONAL_NAMES OCTET_HLML_OPTIONAL(OCTET_NAME)
#define X(result, name, parameters) +sizeof(void *)
_Static_assert(sizeof(octet_synapse) == OCTET_SYNAPSE_FUNCTIONS(X) OCTET_HCCL_FUNCTIONS(X), "one pointer for each name");
_Static_assert(sizeof(octet_hlml) == OCTET_HLML_FUNCTIONS(X) OCTET_HLML_OPTIONAL(X), "one pointer for each name");
#undef X
#endif

// TRY calls a function of a table, and returns its status from the calling function if it
// fails.
#define TRY(table, name, ...) \
	do { \
		const int try_code = (int)(table)->name(__VA_ARGS__); \
		if (try_code) \
			return (octet_syn_status){#name, try_code}; \
	} while (0)

#endif
