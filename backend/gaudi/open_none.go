//go:build !(gaudi && cgo && linux)

package gaudi

import (
	"fmt"
	"runtime"

	"octet/backend"
	"octet/backend/world"
)

// available returns ErrNotBuilt: this build has no Gaudi backend.
func available(string) error {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("%w: SynapseAI is for Linux only", backend.ErrNotBuilt)
	}
	return fmt.Errorf("%w: %s", backend.ErrNotBuilt, howToBuild)
}

func modelHere() string { return "" }

func openRank(int, *world.Group) (synapse, error) { return nil, available("") }

// probe returns no findings: available says why.
func probe() []backend.Finding { return nil }
