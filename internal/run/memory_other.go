//go:build !linux && !darwin

package run

// HostMemory is not known here.
func HostMemory() (free int64, bound string, ok bool) { return 0, "", false }
