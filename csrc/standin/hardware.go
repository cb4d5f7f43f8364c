package standin

import (
	"os"
	"strconv"
	"strings"
)

// Tests of what a device computes hold on hardware as well, and there alone they say
// something about it. The variable OCTET_TEST_GPUS tells how many GPUs a test binary has
// for itself: then Load leaves the vendors' libraries in place, and every test that
// needs a stand-in, or an answer that only a stand-in gives, is skipped.
const testGPUs = "OCTET_TEST_GPUS"

// variables name the file that is loaded in the place of a library.
var variables = map[string]string{
	"libcuda":      "OCTET_LIBCUDA",
	"libcublaslt":  "OCTET_LIBCUBLASLT",
	"libnvrtc":     "OCTET_LIBNVRTC",
	"libnccl":      "OCTET_LIBNCCL",
	"libnvidia-ml": "OCTET_LIBNVML",
}

// Test is the part of *testing.T that tests on either kind of device need.
type Test interface {
	T
	Setenv(key, value string)
}

// Hardware is how many real GPUs there are for tests; 0 is the rule.
func Hardware() int {
	n, _ := strconv.Atoi(os.Getenv(testGPUs)) // what is no number is none
	return max(0, n)
}

// Load has Octet load a stand-in of the test's own for each of these libraries of
// CUDA's, or the real ones if the test has real GPUs.
func Load(t Test, names ...string) {
	if Hardware() > 0 {
		return
	}
	for _, name := range names {
		t.Setenv(variables[name], Build(t, name))
	}
}

// Set sets an environment variable for the test. Stand-ins answer to those that begin
// with STANDIN_: on real GPUs the test ends here, unless all that it wants is as many
// as there are.
func Set(t Test, variable, value string) {
	if n, err := strconv.Atoi(value); Hardware() > 0 && strings.HasPrefix(variable, "STANDIN_") &&
		!(variable == "STANDIN_GPUS" && err == nil && 0 < n && n <= Hardware()) {
		t.Skipf("only a stand-in does as %s=%s says", variable, value)
	}
	t.Setenv(variable, value)
}

// Only ends a test on real GPUs.
func Only(t Test, why string) {
	if Hardware() > 0 {
		t.Skipf("for stand-ins only: %s", why)
	}
}
