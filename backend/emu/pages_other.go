//go:build !linux

package emu

// adviseHugePages does nothing on this system.
func adviseHugePages([]byte) {}
