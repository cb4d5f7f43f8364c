package pool

import "unsafe"

// CacheLine is a cache line, and the width of the widest vector register.
const CacheLine = 64

// Bytes allocates n zero bytes on a cache-line boundary.
func Bytes(n int64) []byte {
	raw := make([]byte, n+CacheLine)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(raw)))) & (CacheLine - 1)
	raw = raw[skip : skip+int(n) : skip+int(n)]
	adviseHugePages(raw)
	return raw
}

// WorkerGap separates the buffers of different workers. Casts prefetch up to 4096 bytes
// ahead (package fp8), also beyond the end of a buffer: without the gap they would take
// cache lines from another worker that is about to write them.
const WorkerGap = 4096

// WorkerBytes is Bytes for one worker.
func WorkerBytes(n int64) []byte { return Bytes(n + WorkerGap)[:n:n] }

// View returns memory as elements.
func View[E float32 | int32 | uint16 | uint8](raw []byte) []E {
	var e E
	return unsafe.Slice((*E)(unsafe.Pointer(unsafe.SliceData(raw))), len(raw)/int(unsafe.Sizeof(e)))
}
