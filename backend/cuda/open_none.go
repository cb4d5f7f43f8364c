//go:build !(cuda && cgo && linux)

package cuda

import (
	"fmt"
	"iter"
	"runtime"

	"octet/backend"
)

// available returns ErrNotBuilt: this binary has no CUDA backend.
func available(string) error {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("%w: CUDA is for Linux only", backend.ErrNotBuilt)
	}
	return fmt.Errorf("%w: %s", backend.ErrNotBuilt, howToBuild)
}

func openRank(options, backend.Options) (backend.Backend, error) {
	return nil, available("")
}

// probe returns no findings; available returns the reason.
func probe() []backend.Finding { return nil }

// examine yields nothing, because no device is available.
func examine(string, []*backend.Program) iter.Seq[backend.Finding] {
	return func(func(backend.Finding) bool) {}
}

// installed returns zeros: this binary has no CUDA backend.
func installed(int) (capability, version int) { return 0, 0 }
