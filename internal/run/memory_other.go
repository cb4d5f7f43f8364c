//go:build !linux && !darwin

package run

// HostMemory is not known here.
func HostMemory() (bytes int64, ok bool) { return 0, false }
