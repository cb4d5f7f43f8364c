// Package standin builds small libraries with the vendors' symbols, for tests
// on machines without the hardware: the production shims of csrc/libcuda and
// csrc/libsynapse load them unmodified. They compute nothing. What they show
// agrees with the vendors' documentation as far as Octet's authors read it;
// that a test passes against them says that the shim does what was meant, not
// that a vendor's library agrees.
//
// Their answers are set by environment variables, read at each call:
//
//	STANDIN_CUDA        newest CUDA that the driver serves (13000)
//	STANDIN_GPUS        GPUs that CUDA shows (1); 0 makes cuInit fail
//	STANDIN_CAPABILITY  compute capability of all GPUs, times 10 (90)
//	STANDIN_GAUDI2      devices of the model (1)
//	STANDIN_GAUDI3      (0)
//	STANDIN_SYNAPSE     status of synInitialize (0)
//
// They are built for Linux, with the compiler named by CC, or gcc.
package standin

import (
	"cmp"
	"embed"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/stretchr/testify/require"
)

//go:embed *.c
var sources embed.FS

// T is the part of *testing.T that Build needs.
type T interface {
	require.TestingT
	TempDir() string
}

// Build compiles <name>.c and returns the path of the library, which lives as
// long as the test.
func Build(t T, name string) string {
	source, err := sources.ReadFile(name + ".c")
	require.NoError(t, err)
	dir := t.TempDir()
	file, library := filepath.Join(dir, name+".c"), filepath.Join(dir, name+".so")
	require.NoError(t, os.WriteFile(file, source, 0o666))
	out, err := exec.Command(cmp.Or(os.Getenv("CC"), "gcc"), "-std=gnu11", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, file).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return library
}
