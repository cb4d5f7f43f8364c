//go:build noasm || (!amd64 && !arm64)

package emu

func pause(int) {}
