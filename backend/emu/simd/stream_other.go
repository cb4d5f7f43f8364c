//go:build noasm || !amd64

package simd

// Nothing streams.

// Stream is copy(dst, src).
func Stream(dst, src []byte) { copy(dst, src) }

// Fence has nothing to wait for.
func Fence() {}
