//go:build noasm || (!amd64 && !arm64)

package emu

func multiply(dst, x, y []float32) { multiplyEachGo(dst, x, y) }

func scaleBy(x []float32, factor float32) { scaleByGo(x, factor) }

func maxMagnitudes(dst, x []float32) { maxMagnitudesGo(dst, x) }
