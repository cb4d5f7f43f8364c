package libsynapse

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Kernels returns the paths of SynapseAI's kernel libraries, from GC_KERNEL_PATH. Without
// them SynapseAI starts, finds the device and runs GEMMs, but every other node fails with
// a mere synFail, so check first.
func Kernels() ([]string, error) {
	const fix = "export GC_KERNEL_PATH=/usr/lib/habanalabs/libtpc_kernels.so, or wherever habanalabs-graph installed that file"
	var paths []string
	for _, path := range filepath.SplitList(os.Getenv("GC_KERNEL_PATH")) {
		if path == "" { // as in /mine.so:$GC_KERNEL_PATH with the variable unset
			continue
		}
		if strings.Contains(path, "/") { // otherwise the loader searches for it
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
