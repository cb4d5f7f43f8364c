package libsynapse

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Kernels lists the libraries of kernels that SynapseAI was told to use, from
// GC_KERNEL_PATH. Without them it starts, finds the device and multiplies
// matrices, but every other node fails with a mere synFail: so this asks
// before.
func Kernels() ([]string, error) {
	const fix = "export GC_KERNEL_PATH=/usr/lib/habanalabs/libtpc_kernels.so, or where habanalabs-graph put that file"
	var paths []string
	for _, path := range filepath.SplitList(os.Getenv("GC_KERNEL_PATH")) {
		if path == "" { // as in /mine.so:$GC_KERNEL_PATH where that was not set
			continue
		}
		if strings.Contains(path, "/") { // else the loader looks for it
			if _, err := os.Stat(path); err != nil {
				return nil, fmt.Errorf("GC_KERNEL_PATH: %w: %s", err, fix)
			}
		}
		paths = append(paths, path)
	}
	if len(paths) == 0 {
		return nil, errors.New("GC_KERNEL_PATH is not set, so SynapseAI finds no kernels: " + fix)
	}
	return paths, nil
}
