//go:build !(cuda && cgo && linux)

package cuda

import (
	"fmt"
	"runtime"

	"octet/backend"
)

// available says that this build cannot.
func available() error {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("there is %w: CUDA is for Linux only", backend.ErrNoDevice)
	}
	return fmt.Errorf("there is %w: this octet was built without cuda: CGO_ENABLED=1 go build -tags cuda . (needs gcc, no CUDA toolkit)", backend.ErrNoDevice)
}

func openRanks(int, int, []byte) ([]backend.Backend, error) {
	return nil, available()
}
