package simd

import "unsafe"

// PrefetchRows asks for rows of so many bytes, step bytes apart, to come into the
// second-level cache. It is advice: it changes nothing, wherever p points.
func PrefetchRows(p unsafe.Pointer, step, rows, bytes int) {
	if haveVectors && rows > 0 {
		prefetchRows(p, step, rows, bytes)
	}
}
