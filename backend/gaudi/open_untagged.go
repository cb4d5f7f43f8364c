//go:build !gaudi

package gaudi

// howToBuild is how to get a binary that has this backend.
const howToBuild = "build it with CGO_ENABLED=1 go build -tags gaudi . (needs gcc, no SynapseAI)"
