//go:build !gaudi

package gaudi

// howToBuild says how to build a binary with this backend.
const howToBuild = "install the accelerators variant of a release, or build it with make build TAGS=gaudi (needs gcc, no SynapseAI)"
