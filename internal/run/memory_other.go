//go:build !linux && !darwin

package run

// hostMemory is not known here.
func hostMemory() (bytes int64, ok bool) { return 0, false }
