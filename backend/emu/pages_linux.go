package emu

import (
	"syscall"
	"unsafe"
)

// hugePage is the size of a huge page on amd64, and on arm64 with pages of 4 KiB.
const hugePage = 2 << 20

// adviseHugePages asks for huge pages: the columns of a matrix are a page or more apart,
// and a processor remembers where only so many pages are. Only whole ones are asked for,
// so that nothing beyond raw becomes resident. Go's runtime asks for none, and most
// systems give them only to those who ask (transparent_hugepage/enabled: madvise).
//
// An error is of no interest: then pages stay small.
func adviseHugePages(raw []byte) {
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(raw))) % hugePage)
	if whole := (len(raw) - skip) / hugePage * hugePage; whole > 0 {
		_ = syscall.Madvise(raw[skip:skip+whole], syscall.MADV_HUGEPAGE)
	}
}
