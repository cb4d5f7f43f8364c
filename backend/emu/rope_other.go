//go:build noasm || (!amd64 && !arm64)

package emu

func rotate(dst, x, cos, sin []float32, sign float32) { rotateGo(dst, x, cos, sin, sign) }
