//go:build !linux

package pool

// adviseHugePages does nothing on this system.
func adviseHugePages([]byte) {}
