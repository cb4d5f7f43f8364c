//go:build !gaudi

package gaudi

// howToBuild says how to build a binary with this backend.
const howToBuild = "build it with make build TAGS=gaudi (needs gcc, no SynapseAI)"
