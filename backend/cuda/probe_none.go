//go:build !(cuda && cgo && linux)

package cuda

import (
	"runtime"

	"octet/backend"
)

// probe says that this build cannot look.
func probe() []backend.Finding {
	f := backend.Finding{What: "probe", Detail: "this octet was built without the code that looks for NVIDIA GPUs"}
	if runtime.GOOS == "linux" {
		f.Fix = "CGO_ENABLED=1 go build -tags cuda . (needs gcc, no CUDA toolkit), then octet doctor again"
	} else {
		f.Detail += ", which exists for Linux only"
	}
	return []backend.Finding{f}
}
