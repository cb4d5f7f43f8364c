package emu

import "unsafe"

// arenaAlign is a cache line, and the width of the widest vector register.
const arenaAlign = 64

// alignedBytes allocates n zero bytes on a cache-line boundary.
func alignedBytes(n int64) []byte {
	raw := make([]byte, n+arenaAlign)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(raw)))) & (arenaAlign - 1)
	raw = raw[skip : skip+int(n) : skip+int(n)]
	adviseHugePages(raw)
	return raw
}

// workerGap separates the buffers of different workers. Casts prefetch up to 4096 bytes
// ahead (package fp8), also beyond the end of a buffer: without the gap they would take
// cache lines from another worker that is about to write them.
const workerGap = 4096

// workerBytes is alignedBytes for one worker.
func workerBytes(n int64) []byte { return alignedBytes(n + workerGap)[:n:n] }

// view returns memory as elements.
func view[E float32 | int32 | uint16 | uint8](raw []byte) []E {
	var e E
	return unsafe.Slice((*E)(unsafe.Pointer(unsafe.SliceData(raw))), len(raw)/int(unsafe.Sizeof(e)))
}
