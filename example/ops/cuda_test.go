//go:build cuda

package ops

import (
	"testing"

	_ "octet/backend/cuda"
	"octet/csrc/standin"
)

// The same tests on backend cuda. Stand-ins for NVIDIA's libraries run the kernels on the
// CPU; they need gcc and g++. With OCTET_TEST_GPUS=1 the tests use a GPU.
//
//	CGO_CFLAGS="-O2 -g -Wno-deprecated-declarations" go test -tags cuda .
func TestCUDA(t *testing.T) {
	standin.Load(t, "libcuda", "libcublaslt", "libnvrtc")
	defer func(before []string) { backends = before }(backends)
	backends = []string{"cuda"}
	t.Run("product", TestProduct)
	t.Run("program", TestProgram)
	t.Run("median", TestMedian)
}
