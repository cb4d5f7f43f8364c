package libcuda

import (
	"fmt"
	"strings"
)

// Error is a failed call of a library.
type Error struct {
	Call string // "cuMemAlloc_v2"; its prefix identifies the library: cu, nvrtc, cublasLt, nccl
	Code int    // CUresult, nvrtcResult, cublasStatus_t or ncclResult_t
	Text string // the library's text for the code
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s returned %d: %s", e.Call, e.Code, e.Text)
}

func (e *Error) cublas() bool { return strings.HasPrefix(e.Call, "cublas") }

// driver reports whether the code is a CUresult.
func (e *Error) driver() bool { return strings.HasPrefix(e.Call, "cu") && !e.cublas() }

// OutOfMemory reports whether the device had too little free memory.
func (e *Error) OutOfMemory() bool {
	return e.driver() && e.Code == 2 || // CUDA_ERROR_OUT_OF_MEMORY
		e.cublas() && e.Code == 3 // CUBLAS_STATUS_ALLOC_FAILED
}

// Refused reports whether cuBLASLt refused a GEMM: nothing was enqueued, and another
// algorithm may work.
func (e *Error) Refused() bool {
	return e.cublas() && (e.Code == 7 || e.Code == 15) // CUBLAS_STATUS_INVALID_VALUE, CUBLAS_STATUS_NOT_SUPPORTED
}

// DeviceLost reports whether the context is dead, so that every further call fails: the
// codes for which cuda.h requires the process to be terminated and relaunched, and those
// of a broken or removed device. Only codes of the driver count.
func (e *Error) DeviceLost() bool {
	if !e.driver() {
		return false
	}
	switch e.Code {
	case 46, // CUDA_ERROR_DEVICE_UNAVAILABLE
		214, // CUDA_ERROR_ECC_UNCORRECTABLE
		220, // CUDA_ERROR_NVLINK_UNCORRECTABLE
		226, // CUDA_ERROR_CONTAINED
		700, // CUDA_ERROR_ILLEGAL_ADDRESS
		702, // CUDA_ERROR_LAUNCH_TIMEOUT
		709, // CUDA_ERROR_CONTEXT_IS_DESTROYED
		710, // CUDA_ERROR_ASSERT
		714, // CUDA_ERROR_HARDWARE_STACK_ERROR
		715, // CUDA_ERROR_ILLEGAL_INSTRUCTION
		716, // CUDA_ERROR_MISALIGNED_ADDRESS
		717, // CUDA_ERROR_INVALID_ADDRESS_SPACE
		718, // CUDA_ERROR_INVALID_PC
		719, // CUDA_ERROR_LAUNCH_FAILED
		810: // CUDA_ERROR_MPS_CLIENT_TERMINATED
		return true
	}
	return false
}
