//go:build !noasm

package simd

import "unsafe"

// Stream is copy(dst, src) of all of src, past the caches: whole lines of dst are not
// read to be overwritten. Others may read dst after Fence.
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

// Fence makes the stores that streamed, which are weakly ordered, visible before all
// that follow: Intel's manual, volume 1, "Caching of Temporal vs. Non-Temporal Data".
func Fence()
