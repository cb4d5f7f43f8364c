package simd

import "unsafe"

// PrefetchRows prefetches rows of the given number of bytes, step bytes apart, into the
// second-level cache. It is a hint without other effects, wherever p points.
func PrefetchRows(p unsafe.Pointer, step, rows, bytes int) {
	if haveVectors && rows > 0 {
		prefetchRows(p, step, rows, bytes)
	}
}

//go:noescape
func prefetchRows(p unsafe.Pointer, step, rows, bytes int)
