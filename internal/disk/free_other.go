//go:build !linux && !darwin && !freebsd

package disk

// Free returns ok = false: this system does not report free space.
func Free(string) (bytes int64, ok bool) { return 0, false }
