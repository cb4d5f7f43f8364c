//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package data

import (
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// stampOf does not allocate, as os.File.Stat would: it is part of every read.
func stampOf(f *os.File) (stamp, error) {
	var s unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &s); err != nil {
		return stamp{}, os.NewSyscallError("fstat", err)
	}
	return stamp{s.Size, s.Mtim.Nano()}, nil
}

// descriptors is how many files the process may have open.
func descriptors() int {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) != nil {
		return math.MaxInt
	}
	return int(min(uint64(r.Cur), math.MaxInt))
}
