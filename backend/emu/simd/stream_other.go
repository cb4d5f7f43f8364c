//go:build noasm || !amd64

package simd

// Without non-temporal stores, Stream is a plain copy.

// Stream copies src to dst.
func Stream(dst, src []byte) { copy(dst, src) }

// Fence does nothing.
func Fence() {}
