//go:build linux || darwin || freebsd

package disk

import (
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Free returns how many bytes the file system of a path has free for this user. If the path
// does not exist, its nearest existing parent counts. ok is false if the number is unknown.
func Free(path string) (bytes int64, ok bool) {
	var s unix.Statfs_t
	for unix.Statfs(path, &s) != nil {
		parent := filepath.Dir(path)
		if parent == path {
			return 0, false
		}
		path = parent
	}
	return int64(s.Bavail) * int64(s.Bsize), true
}
