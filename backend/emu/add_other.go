//go:build noasm || (!amd64 && !arm64)

package emu

func addInto(dst, x []float32) { addIntoGo(dst, x) }
