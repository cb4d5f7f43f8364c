package pool

import (
	"syscall"
	"unsafe"
)

// hugePage is the size of a huge page on amd64, and on arm64 with pages of 4 KiB.
const hugePage = 2 << 20

// adviseHugePages advises Linux to back raw with huge pages, because elements of a column
// are a page or more apart and the TLB is small. It advises only whole huge pages, so that
// no memory beyond raw becomes resident. The Go runtime does not ask for huge pages, and
// most systems require it (transparent_hugepage/enabled: madvise).
//
// Errors are ignored: pages then stay small.
func adviseHugePages(raw []byte) {
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(raw))) % hugePage)
	if whole := (len(raw) - skip) / hugePage * hugePage; whole > 0 {
		_ = syscall.Madvise(raw[skip:skip+whole], syscall.MADV_HUGEPAGE)
	}
}
