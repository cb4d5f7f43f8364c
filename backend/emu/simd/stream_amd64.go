//go:build !noasm

package simd

import "unsafe"

// Stream copies all of src to dst with non-temporal stores: whole cache lines of dst are
// not read before they are overwritten. Other threads may read dst after Fence.
func Stream(dst, src []byte) {
	dst = dst[:len(src)]
	head := int(-uintptr(unsafe.Pointer(unsafe.SliceData(dst))) % lineBytes)
	lines := (len(src) - head) &^ (lineBytes - 1)
	if !haveVectors || lines <= 0 {
		copy(dst, src)
		return
	}
	copy(dst[:head], src)
	streamLines(&dst[head], &src[head], lines)
	copy(dst[head+lines:], src[head+lines:])
}

//go:noescape
func streamLines(dst, src *byte, n int)

// Fence orders non-temporal stores, which are weakly ordered, before all later stores
// (Intel's manual, volume 1, "Caching of Temporal vs. Non-Temporal Data").
func Fence()
