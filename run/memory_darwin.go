package run

import "golang.org/x/sys/unix"

// HostMemory returns the machine's total memory: macOS frees memory only when it is
// allocated.
func HostMemory() (free int64, bound string, ok bool) {
	n, err := unix.SysctlUint64("hw.memsize")
	return int64(n), "this machine", err == nil
}
