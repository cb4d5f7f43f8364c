//go:build !linux

package emu

// adviseHugePages leaves pages to the system.
func adviseHugePages([]byte) {}
