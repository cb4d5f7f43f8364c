//go:build noasm || (!amd64 && !arm64)

// The compiler accepts functions without a body only in packages with assembly. Here
// nothing calls them, because haveVectors is false.
