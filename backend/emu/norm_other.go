//go:build noasm || (!amd64 && !arm64)

package emu

func dot(x, y []float32) float32 { return dotGo(x, y) }

func gainSums(dgain, x, dy, gain []float32, inv float32) float32 {
	return gainSumsGo(dgain, x, dy, gain, inv)
}

func scaleByGain(dst, x, gain []float32, inv float32) { scaleByGainGo(dst, x, gain, inv) }

func normGradient(dx, x, dy, gain []float32, inv, mean float32) {
	normGradientGo(dx, x, dy, gain, inv, mean)
}
