//go:build !(gaudi && cgo && linux)

package gaudi

import (
	"runtime"

	"octet/backend"
)

// probe says that this build cannot look.
func probe() []backend.Finding {
	f := backend.Finding{What: "probe", Detail: "this octet was built without the code that looks for Gaudi devices"}
	if runtime.GOOS == "linux" {
		f.Fix = "CGO_ENABLED=1 go build -tags gaudi . (needs gcc, no SynapseAI), then octet doctor again"
	} else {
		f.Detail += ", which exists for Linux only"
	}
	return []backend.Finding{f}
}
