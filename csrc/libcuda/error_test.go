package libcuda

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// A code is interpreted by its library.
func TestErrorsAreClassified(t *testing.T) {
	for _, c := range []struct {
		call              string
		code              int
		outOfMemory, lost bool
	}{
		{"cuMemAlloc_v2", 2, true, false},
		{"cublasLtCreate", 3, true, false},
		{"cuInit", 3, false, false},         // not initialised
		{"cublasLtMatmul", 2, false, false}, // not a status of cuBLASLt
		{"nvrtcCompileProgram", 2, false, false},
		{"cuStreamSynchronize", 700, false, true},
		{"cuStreamSynchronize", 719, false, true},
		{"cuLaunchKernel", 214, false, true},
		{"cuLaunchKernel", 1, false, false},
		{"cublasLtMatmul", 13, false, false}, // also if a launch failed for another reason
		{"cublasLtMatmul", 700, false, false},
		{"ncclAllReduce", 2, false, false}, // a system error
		{"cuMemAlloc_v2", 13, false, false},
		{"cuInit", 999, false, false}, // the driver does not start; no device was lost
	} {
		e := &Error{Call: c.call, Code: c.code}
		require.Equal(t, c.outOfMemory, e.OutOfMemory(), "%+v", e)
		require.Equal(t, c.lost, e.DeviceLost(), "%+v", e)
	}
	for code, refused := range map[int]bool{7: true, 15: true, 3: false, 13: false, 14: false} {
		require.Equal(t, refused, (&Error{Call: "cublasLtMatmul", Code: code}).Refused(), code)
		require.False(t, (&Error{Call: "cuLaunchKernel", Code: code}).Refused(), code)
	}
	require.EqualError(t, fmt.Errorf("here: %w", &Error{"cuInit", 34, "a stub"}), "here: cuInit returned 34: a stub")
}
