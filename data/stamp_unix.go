//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package data

import (
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// stampOf returns the stamp of an open file. Every read calls it, so unlike os.File.Stat
// it does not allocate.
func stampOf(f *os.File) (stamp, error) {
	var s unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &s); err != nil {
		return stamp{}, os.NewSyscallError("fstat", err)
	}
	return stamp{s.Size, s.Mtim.Nano()}, nil
}

// maxDescriptors returns the maximum number of open files of the process.
func maxDescriptors() int {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) != nil {
		return math.MaxInt
	}
	return int(min(uint64(r.Cur), math.MaxInt))
}
