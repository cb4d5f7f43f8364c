//go:build !cuda

package cuda

// howToBuild is the command that builds a binary with this backend.
const howToBuild = "install the accelerators variant of a release, or build it with make build TAGS=cuda (needs gcc, no CUDA toolkit)"
