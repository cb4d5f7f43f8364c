//go:build noasm || (!amd64 && !arm64)

package emu

func relu(dst, x []float32) { reluGo(dst, x) }

func reluGradient(dx, x, dy []float32) { reluGradientGo(dx, x, dy) }

func gelu(dst, x []float32) { geluGo(dst, x) }

func geluGradient(dx, x, dy []float32) { geluGradientGo(dx, x, dy) }
