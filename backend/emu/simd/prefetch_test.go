package simd

import (
	"testing"
	"unsafe"
)

// PrefetchRows accepts any address, mapped or not.
func TestPrefetchRows(t *testing.T) {
	x := make([]byte, 1000)
	for _, bytes := range []int{1, 63, 64, 65, 200} {
		for rows := range 4 {
			PrefetchRows(unsafe.Pointer(&x[bytes]), 1<<20, rows, bytes)
		}
	}
}
