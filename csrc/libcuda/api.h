// The part of NVIDIA's interfaces that Octet uses, in its own declarations, so that a
// build needs no CUDA header. Functions and constants are X-macro lists: the loader's
// tables, the enumerations below and the comparison with NVIDIA's headers (headers.c)
// expand the same lines.
//
// Names of the driver are the exported symbols: NVIDIA's header maps cuMemAlloc to
// cuMemAlloc_v2; the plain symbol is an old one with 32-bit sizes.
#ifndef OCTET_CUDA_API_H
#define OCTET_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

#ifndef OCTET_CUDA_HEADERS
// NVIDIA's enumerations are as wide as int on every platform of CUDA.
typedef int CUresult, CUdevice, CUdevice_attribute, CUfunction_attribute, CUstreamCaptureMode;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream, *cudaStream_t;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;

typedef int nvrtcResult;
typedef struct _nvrtcProgram *nvrtcProgram;

typedef int cublasStatus_t, cudaDataType_t, cublasComputeType_t;
typedef int cublasLtMatmulDescAttributes_t, cublasLtMatmulPreferenceAttributes_t, cublasLtMatmulAlgoConfigAttributes_t;
typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct octet_lt_desc *cublasLtMatmulDesc_t;
typedef struct octet_lt_layout *cublasLtMatrixLayout_t;
typedef struct octet_lt_preference *cublasLtMatmulPreference_t;
typedef struct {
	uint64_t data[8];
} cublasLtMatmulAlgo_t;
typedef struct {
	cublasLtMatmulAlgo_t algo;
	size_t workspaceSize;
	cublasStatus_t state;
	float wavesCount;
	int reserved[4];
} cublasLtMatmulHeuristicResult_t;

typedef int ncclResult_t, ncclDataType_t, ncclRedOp_t;
typedef struct ncclComm *ncclComm_t;
typedef struct { char internal[128]; } ncclUniqueId; // passed by value
#endif

// clang-format off
#define OCTET_CONSTANTS(X) \
	X(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16) \
	X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75) \
	X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76) \
	X(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 97) \
	X(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 8) \
	X(CU_STREAM_NON_BLOCKING, 1) \
	X(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, 1) \
	X(CU_EVENT_DEFAULT, 0) \
	X(CU_EVENT_DISABLE_TIMING, 2) \
	X(CU_EVENT_WAIT_DEFAULT, 0) \
	X(CUDA_R_32F, 0) \
	X(CUDA_R_16F, 2) \
	X(CUDA_R_16BF, 14) \
	X(CUDA_R_8F_E4M3, 28) \
	X(CUDA_R_8F_E5M2, 29) \
	X(CUBLAS_COMPUTE_32F, 68) \
	X(CUBLASLT_MATMUL_DESC_POINTER_MODE, 2) \
	X(CUBLASLT_POINTER_MODE_DEVICE, 1) \
	X(CUBLASLT_MATMUL_DESC_TRANSA, 3) \
	X(CUBLASLT_MATMUL_DESC_TRANSB, 4) \
	X(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, 17) \
	X(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, 18) \
	X(CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, 20) \
	X(CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, 21) \
	X(CUBLASLT_MATMUL_DESC_FAST_ACCUM, 25) \
	X(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1) \
	X(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 3) \
	X(CUBLASLT_REDUCTION_SCHEME_NONE, 0) \
	X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 5) \
	X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 6) \
	X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 7) \
	X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 8) \
	X(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 2)

// From CUDA 12.9 on; the shim passes the modes as numbers.
#define OCTET_SCALE_CONSTANTS(X) \
	X(CUDA_R_4F_E2M1, 33) \
	X(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, 31) \
	X(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, 32) \
	X(CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, 0) \
	X(CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3, 1) \
	X(CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0, 2) \
	X(CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F, 3) \
	X(CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F, 4) \
	X(CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F, 5)

#define OCTET_NCCL_CONSTANTS(X) \
	X(ncclInProgress, 7) \
	X(ncclUint8, 1) \
	X(ncclInt32, 2) \
	X(ncclFloat32, 7) \
	X(ncclSum, 0) \
	X(ncclMax, 2)

// The special macros of a launch with packed parameters are pointers.
#define OCTET_LAUNCH_PARAM_END ((void *)0)
#define OCTET_LAUNCH_PARAM_BUFFER_POINTER ((void *)1)
#define OCTET_LAUNCH_PARAM_BUFFER_SIZE ((void *)2)

#define OCTET_DRIVER_FUNCTIONS(X) \
	X(CUresult, cuInit, (unsigned)) \
	X(CUresult, cuDriverGetVersion, (int *)) \
	X(CUresult, cuGetErrorString, (CUresult, const char **)) \
	X(CUresult, cuDeviceGetCount, (int *)) \
	X(CUresult, cuDeviceGet, (CUdevice *, int)) \
	X(CUresult, cuDeviceGetName, (char *, int, CUdevice)) \
	X(CUresult, cuDeviceGetPCIBusId, (char *, int, CUdevice)) \
	X(CUresult, cuDeviceGetAttribute, (int *, CUdevice_attribute, CUdevice)) \
	X(CUresult, cuDeviceTotalMem_v2, (size_t *, CUdevice)) \
	X(CUresult, cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice)) \
	X(CUresult, cuDevicePrimaryCtxRelease_v2, (CUdevice)) \
	X(CUresult, cuCtxSetCurrent, (CUcontext)) \
	X(CUresult, cuCtxGetDevice, (CUdevice *)) \
	X(CUresult, cuMemGetInfo_v2, (size_t *, size_t *)) \
	X(CUresult, cuMemAlloc_v2, (CUdeviceptr *, size_t)) \
	X(CUresult, cuMemFree_v2, (CUdeviceptr)) \
	X(CUresult, cuMemHostAlloc, (void **, size_t, unsigned)) \
	X(CUresult, cuMemFreeHost, (void *)) \
	X(CUresult, cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream)) \
	X(CUresult, cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream)) \
	X(CUresult, cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream)) \
	X(CUresult, cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
	X(CUresult, cuStreamCreate, (CUstream *, unsigned)) \
	X(CUresult, cuStreamDestroy_v2, (CUstream)) \
	X(CUresult, cuStreamSynchronize, (CUstream)) \
	X(CUresult, cuStreamQuery, (CUstream)) \
	X(CUresult, cuStreamWaitEvent, (CUstream, CUevent, unsigned)) \
	X(CUresult, cuEventCreate, (CUevent *, unsigned)) \
	X(CUresult, cuEventDestroy_v2, (CUevent)) \
	X(CUresult, cuEventRecord, (CUevent, CUstream)) \
	X(CUresult, cuEventSynchronize, (CUevent)) \
	X(CUresult, cuEventElapsedTime, (float *, CUevent, CUevent)) \
	X(CUresult, cuModuleLoadData, (CUmodule *, const void *)) \
	X(CUresult, cuModuleUnload, (CUmodule)) \
	X(CUresult, cuModuleGetFunction, (CUfunction *, CUmodule, const char *)) \
	X(CUresult, cuFuncSetAttribute, (CUfunction, CUfunction_attribute, int)) \
	X(CUresult, cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **)) \
	X(CUresult, cuStreamBeginCapture_v2, (CUstream, CUstreamCaptureMode)) \
	X(CUresult, cuStreamEndCapture, (CUstream, CUgraph *)) \
	X(CUresult, cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long)) \
	X(CUresult, cuGraphDestroy, (CUgraph)) \
	X(CUresult, cuGraphExecDestroy, (CUgraphExec)) \
	X(CUresult, cuGraphLaunch, (CUgraphExec, CUstream))

// Missing in drivers older than CUDA 12.4.
#define OCTET_DRIVER_OPTIONAL(X) \
	X(CUresult, cuFuncGetParamInfo, (CUfunction, size_t, size_t *, size_t *))

#define OCTET_NVRTC_FUNCTIONS(X) \
	X(nvrtcResult, nvrtcVersion, (int *, int *)) \
	X(const char *, nvrtcGetErrorString, (nvrtcResult)) \
	X(nvrtcResult, nvrtcGetNumSupportedArchs, (int *)) \
	X(nvrtcResult, nvrtcGetSupportedArchs, (int *)) \
	X(nvrtcResult, nvrtcCreateProgram, (nvrtcProgram *, const char *, const char *, int, const char *const *, const char *const *)) \
	X(nvrtcResult, nvrtcDestroyProgram, (nvrtcProgram *)) \
	X(nvrtcResult, nvrtcCompileProgram, (nvrtcProgram, int, const char *const *)) \
	X(nvrtcResult, nvrtcGetProgramLogSize, (nvrtcProgram, size_t *)) \
	X(nvrtcResult, nvrtcGetProgramLog, (nvrtcProgram, char *)) \
	X(nvrtcResult, nvrtcGetCUBINSize, (nvrtcProgram, size_t *)) \
	X(nvrtcResult, nvrtcGetCUBIN, (nvrtcProgram, char *))

#define OCTET_CUBLASLT_FUNCTIONS(X) \
	X(size_t, cublasLtGetVersion, (void)) \
	X(const char *, cublasLtGetStatusString, (cublasStatus_t)) \
	X(cublasStatus_t, cublasLtCreate, (cublasLtHandle_t *)) \
	X(cublasStatus_t, cublasLtDestroy, (cublasLtHandle_t)) \
	X(cublasStatus_t, cublasLtMatmulDescCreate, (cublasLtMatmulDesc_t *, cublasComputeType_t, cudaDataType_t)) \
	X(cublasStatus_t, cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t)) \
	X(cublasStatus_t, cublasLtMatmulDescSetAttribute, (cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *, size_t)) \
	X(cublasStatus_t, cublasLtMatrixLayoutCreate, (cublasLtMatrixLayout_t *, cudaDataType_t, uint64_t, uint64_t, int64_t)) \
	X(cublasStatus_t, cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t)) \
	X(cublasStatus_t, cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t *)) \
	X(cublasStatus_t, cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t)) \
	X(cublasStatus_t, cublasLtMatmulPreferenceSetAttribute, (cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void *, size_t)) \
	X(cublasStatus_t, cublasLtMatmulAlgoGetHeuristic, (cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t *, int *)) \
	X(cublasStatus_t, cublasLtMatmulAlgoCheck, (cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *, cublasLtMatmulHeuristicResult_t *)) \
	X(cublasStatus_t, cublasLtMatmulAlgoConfigGetAttribute, (const cublasLtMatmulAlgo_t *, cublasLtMatmulAlgoConfigAttributes_t, void *, size_t, size_t *)) \
	X(cublasStatus_t, cublasLtMatmul, (cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *, cublasLtMatrixLayout_t, const void *, cublasLtMatrixLayout_t, const void *, const void *, cublasLtMatrixLayout_t, void *, cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *, void *, size_t, cudaStream_t))

#define OCTET_NCCL_FUNCTIONS(X) \
	X(ncclResult_t, ncclGetVersion, (int *)) \
	X(const char *, ncclGetErrorString, (ncclResult_t)) \
	X(ncclResult_t, ncclGetUniqueId, (ncclUniqueId *)) \
	X(ncclResult_t, ncclCommInitRank, (ncclComm_t *, int, ncclUniqueId, int)) \
	X(ncclResult_t, ncclCommDestroy, (ncclComm_t)) \
	X(ncclResult_t, ncclCommAbort, (ncclComm_t)) \
	X(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t, ncclResult_t *)) \
	X(ncclResult_t, ncclAllReduce, (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t)) \
	X(ncclResult_t, ncclReduceScatter, (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t)) \
	X(ncclResult_t, ncclAllGather, (const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t)) \
	X(ncclResult_t, ncclGroupStart, (void)) \
	X(ncclResult_t, ncclGroupEnd, (void)) \
	X(ncclResult_t, ncclSend, (const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t)) \
	X(ncclResult_t, ncclRecv, (void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))
// clang-format on

#ifndef OCTET_CUDA_HEADERS
#define X(name, value) name = value,
enum { OCTET_CONSTANTS(X) OCTET_SCALE_CONSTANTS(X) OCTET_NCCL_CONSTANTS(X) };
#undef X
#endif

// A table has one pointer per function, in the order of the lists.
#define X(result, name, parameters) result(*name) parameters;
typedef struct octet_driver {
	OCTET_DRIVER_FUNCTIONS(X)
	OCTET_DRIVER_OPTIONAL(X)
} octet_driver;
typedef struct octet_nvrtc {
	OCTET_NVRTC_FUNCTIONS(X)
} octet_nvrtc;
typedef struct octet_cublaslt {
	OCTET_CUBLASLT_FUNCTIONS(X)
} octet_cublaslt;
#if !defined(OCTET_CUDA_HEADERS) || defined(NCCL_H_)
typedef struct octet_nccl {
	OCTET_NCCL_FUNCTIONS(X)
} octet_nccl;
#endif
#undef X

#ifndef OCTET_CUDA_HEADERS
// The names of a table's functions, for the loader, in the order of the table.
#define OCTET_NAME(result, name, parameters) " " #name
#define OCTET_DRIVER_NAMES OCTET_DRIVER_FUNCTIONS(OCTET_NAME)
#define OCTET_DRIVER_OPTIONAL_NAMES OCTET_DRIVER_OPTIONAL(OCTET_NAME)
#define OCTET_NVRTC_NAMES OCTET_NVRTC_FUNCTIONS(OCTET_NAME)
#define OCTET_CUBLASLT_NAMES OCTET_CUBLASLT_FUNCTIONS(OCTET_NAME)
#define OCTET_NCCL_NAMES OCTET_NCCL_FUNCTIONS(OCTET_NAME)
#define X(result, name, parameters) +sizeof(void *)
_Static_assert(sizeof(octet_driver) == OCTET_DRIVER_FUNCTIONS(X) OCTET_DRIVER_OPTIONAL(X), "one pointer for each name");
_Static_assert(sizeof(octet_nvrtc) == OCTET_NVRTC_FUNCTIONS(X), "one pointer for each name");
_Static_assert(sizeof(octet_cublaslt) == OCTET_CUBLASLT_FUNCTIONS(X), "one pointer for each name");
_Static_assert(sizeof(octet_nccl) == OCTET_NCCL_FUNCTIONS(X), "one pointer for each name");
#undef X
#endif

// TRY calls a function of a table and returns its error from the shim's entry.
#define TRY(table, name, ...) \
	do { \
		const int try_code = (int)(table)->name(__VA_ARGS__); \
		if (try_code) \
			return (octet_status){#name, try_code}; \
	} while (0)

// ENTER makes the device's context current on this thread. Go moves goroutines between
// threads, so every entry begins with ENTER; it costs tens of nanoseconds.
#define ENTER(device) TRY((device)->api, cuCtxSetCurrent, (CUcontext)(device)->context)

#endif
