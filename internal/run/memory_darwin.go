package run

import "golang.org/x/sys/unix"

// HostMemory is the machine's memory; how much of it is free macOS decides
// only when it is asked for.
func HostMemory() (free int64, bound string, ok bool) {
	n, err := unix.SysctlUint64("hw.memsize")
	return int64(n), "this machine", err == nil
}
