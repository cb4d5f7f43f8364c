//go:build !gaudi

package gaudi

// howToBuild is how to get a binary that has this backend.
const howToBuild = "build it with make build TAGS=gaudi (needs gcc, no SynapseAI)"
