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

// maxDescriptors returns the maximum number of open files of the process: no known limit
// on this system.
func maxDescriptors() int { return math.MaxInt }
