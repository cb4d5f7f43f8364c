package libsynapse

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Kernels lists the libraries of kernels that SynapseAI was told to use, from
// GC_KERNEL_PATH. Without them it starts, finds the device and multiplies
// matrices, but every other node fails with a mere synFail: so this asks
// before.
func Kernels() ([]string, error) {
	const fix = "export GC_KERNEL_PATH=/usr/lib/habanalabs/libtpc_kernels.so, or where habanalabs-graph put that file"
	paths := filepath.SplitList(os.Getenv("GC_KERNEL_PATH"))
	if len(paths) == 0 {
		return nil, errors.New("GC_KERNEL_PATH is not set, so SynapseAI finds no kernels: " + fix)
	}
	for _, path := range paths {
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("GC_KERNEL_PATH: %w: %s", err, fix)
		}
	}
	return paths, nil
}
