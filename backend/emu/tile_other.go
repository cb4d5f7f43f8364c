//go:build noasm || (!amd64 && !arm64)

package emu

func inPlace(*gemmKernel) multiplyInto { return nil }
