//go:build !(gaudi && cgo && linux)

package gaudi

import (
	"fmt"
	"runtime"

	"octet/backend"
)

// available says that this build cannot.
func available() error {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("there is %w: SynapseAI is for Linux only", backend.ErrNoDevice)
	}
	return fmt.Errorf("there is %w: this octet was built without gaudi: CGO_ENABLED=1 go build -tags gaudi . (needs gcc, no SynapseAI)", backend.ErrNoDevice)
}

func modelHere() string { return "" }

func openRanks(int, int) ([]synapse, error) { return nil, available() }
