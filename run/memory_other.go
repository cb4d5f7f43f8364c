//go:build !linux && !darwin

package run

// HostMemory returns ok = false: this system does not report its memory.
func HostMemory() (free int64, bound string, ok bool) { return 0, "", false }
