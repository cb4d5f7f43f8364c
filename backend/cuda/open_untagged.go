//go:build !cuda

package cuda

// howToBuild is how to get a binary that has this backend.
const howToBuild = "build it with make build TAGS=cuda (needs gcc, no CUDA toolkit)"
