//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package data

import (
	"math"
	"os"
)

func stampOf(f *os.File) (stamp, error) {
	info, err := f.Stat()
	if err != nil {
		return stamp{}, err
	}
	return stamp{info.Size(), info.ModTime().UnixNano()}, nil
}

// descriptors is how many files the process may have open: no limit is known here.
func descriptors() int { return math.MaxInt }
