package run

import "golang.org/x/sys/unix"

// hostMemory is the machine's memory; how much of it is free macOS decides
// only when it is asked for.
func hostMemory() (bytes int64, ok bool) {
	n, err := unix.SysctlUint64("hw.memsize")
	return int64(n), err == nil
}
