//go:build cuda && cgo && linux && cuda_headers

// Compares the declarations of api.h with NVIDIA's headers, if a toolkit is installed. It
// only compiles; a static assertion names the line that differs.
//
//	CGO_CFLAGS=-I/usr/local/cuda/include go vet -tags cuda,cuda_headers ./csrc/libcuda
//
// NCCL is not part of the toolkit; without its header its lines are not compared.

#include <cublasLt.h>
#include <cuda.h>
#include <nvrtc.h>
#if __has_include(<nccl.h>)
#include <nccl.h>
#endif

#define OCTET_CUDA_HEADERS
#include "api.h"

#define CONSTANT(name, value) _Static_assert((int)name == value, #name);
OCTET_CONSTANTS(CONSTANT)
#if CUBLAS_VERSION >= 120900
OCTET_SCALE_CONSTANTS(CONSTANT)
#endif

_Static_assert(CUBLAS_OP_N == 0 && CUBLAS_OP_T == 1, "the transposes");
_Static_assert(sizeof(CUdevice) == 4 && sizeof(CUresult) == 4 && sizeof(cublasStatus_t) == 4 && sizeof(cudaDataType_t) == 4 &&
		       sizeof(CUdeviceptr) == 8,
	       "the widths");
_Static_assert(sizeof(cublasLtMatmulAlgo_t) == 64, "the algorithm is a blob of 64 bytes");
_Static_assert(sizeof(cublasLtMatmulHeuristicResult_t) == 96 && offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize) == 64 &&
		       offsetof(cublasLtMatmulHeuristicResult_t, state) == 72 &&
		       offsetof(cublasLtMatmulHeuristicResult_t, wavesCount) == 76,
	       "the heuristic's result");
_Static_assert((uintptr_t)CU_LAUNCH_PARAM_END == 0 && (uintptr_t)CU_LAUNCH_PARAM_BUFFER_POINTER == 1 &&
		       (uintptr_t)CU_LAUNCH_PARAM_BUFFER_SIZE == 2,
	       "the packed parameters");

#define FUNCTION(result, name, parameters) \
	_Static_assert(__builtin_types_compatible_p(result(*) parameters, __typeof__(&name)), #name);
OCTET_DRIVER_FUNCTIONS(FUNCTION)
OCTET_DRIVER_OPTIONAL(FUNCTION)
OCTET_NVRTC_FUNCTIONS(FUNCTION)
OCTET_CUBLASLT_FUNCTIONS(FUNCTION)

#ifdef NCCL_H_
OCTET_NCCL_CONSTANTS(CONSTANT)
OCTET_NCCL_FUNCTIONS(FUNCTION)
_Static_assert(sizeof(ncclResult_t) == 4 && sizeof(ncclDataType_t) == 4 && sizeof(ncclRedOp_t) == 4, "the widths");
#endif
