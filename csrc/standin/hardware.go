package standin

import (
	"os"
	"strconv"
	"strings"
)

// Tests of a device's results also run on hardware. The variable OCTET_TEST_GPUS is the
// number of GPUs that a test binary has for itself: then Load leaves the vendors'
// libraries in place, and every test that needs a stand-in, or an answer that only a
// stand-in gives, is skipped.
const testGPUs = "OCTET_TEST_GPUS"

// variables has the environment variable that names a replacement for each library.
var variables = map[string]string{
	"libcuda":      "OCTET_LIBCUDA",
	"libcublaslt":  "OCTET_LIBCUBLASLT",
	"libnvrtc":     "OCTET_LIBNVRTC",
	"libnccl":      "OCTET_LIBNCCL",
	"libnvidia-ml": "OCTET_LIBNVML",
}

// Test is the part of *testing.T that Load, Set and Only need.
type Test interface {
	T
	Setenv(key, value string)
}

// Hardware returns the number of real GPUs for tests, usually 0.
func Hardware() int {
	n, _ := strconv.Atoi(os.Getenv(testGPUs)) // 0 on error
	return max(0, n)
}

// Load makes Octet load a new stand-in for each of these CUDA libraries, or the real
// libraries if the test has real GPUs.
func Load(t Test, names ...string) {
	if Hardware() > 0 {
		return
	}
	for _, name := range names {
		t.Setenv(variables[name], Build(t, name))
	}
}

// Set sets an environment variable for the test. Variables that begin with STANDIN_ work
// only with stand-ins: on real GPUs Set skips the test, unless it asks for at most the
// available number of GPUs.
func Set(t Test, variable, value string) {
	if n, err := strconv.Atoi(value); Hardware() > 0 && strings.HasPrefix(variable, "STANDIN_") &&
		!(variable == "STANDIN_GPUS" && err == nil && 0 < n && n <= Hardware()) {
		t.Skipf("%s=%s needs a stand-in", variable, value)
	}
	t.Setenv(variable, value)
}

// Only skips a test on real GPUs, with the reason why.
func Only(t Test, why string) {
	if Hardware() > 0 {
		t.Skipf("for stand-ins only: %s", why)
	}
}
