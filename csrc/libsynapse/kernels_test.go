package libsynapse

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKernels(t *testing.T) {
	t.Setenv("GC_KERNEL_PATH", "")
	_, err := Kernels()
	require.EqualError(t, err, "GC_KERNEL_PATH is not set, so SynapseAI finds no kernels: export GC_KERNEL_PATH=/usr/lib/habanalabs/libtpc_kernels.so, or wherever habanalabs-graph installed that file")

	there, missing := filepath.Join(t.TempDir(), "there.so"), filepath.Join(t.TempDir(), "missing.so")
	require.NoError(t, os.WriteFile(there, nil, 0o666))
	t.Setenv("GC_KERNEL_PATH", there+string(filepath.ListSeparator)+missing)
	_, err = Kernels()
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, missing)

	for set, want := range map[string][]string{
		there:                         {there},
		there + ":":                   {there},                      // there:$GC_KERNEL_PATH, with the variable unset
		"libtpc_kernels.so:" + there:  {"libtpc_kernels.so", there}, // the loader searches for the first
		there + "::libtpc_kernels.so": {there, "libtpc_kernels.so"},
	} {
		t.Setenv("GC_KERNEL_PATH", set)
		paths, err := Kernels()
		require.NoError(t, err, set)
		require.Equal(t, want, paths)
	}

	t.Setenv("GC_KERNEL_PATH", ":")
	_, err = Kernels()
	require.ErrorContains(t, err, "is not set")
}
