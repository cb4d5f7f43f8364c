//go:build !(cuda && cgo && linux)

package cuda

import (
	"fmt"
	"iter"
	"runtime"

	"octet/backend"
)

// available says that this build cannot.
func available(string) error {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("%w: CUDA is for Linux only", backend.ErrNotBuilt)
	}
	return fmt.Errorf("%w: %s", backend.ErrNotBuilt, howToBuild)
}

func openRanks(wish, backend.Options) ([]backend.Backend, error) {
	return nil, available("")
}

// probe finds nothing: available says why.
func probe() []backend.Finding { return nil }

// examine is not asked where nothing is available.
func examine(string, []*backend.Program) iter.Seq[backend.Finding] {
	return func(func(backend.Finding) bool) {}
}
