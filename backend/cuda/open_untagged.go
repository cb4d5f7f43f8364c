//go:build !cuda

package cuda

// howToBuild is how to get a binary that has this backend.
const howToBuild = "build it with CGO_ENABLED=1 go build -tags cuda . (needs gcc, no CUDA toolkit)"
