//go:build !linux && !darwin

package hostmem

// Free returns ok = false: this system does not report its memory.
func Free() (free int64, bound string, ok bool) { return 0, "", false }
