//go:build noasm || (!amd64 && !arm64)

package emu

func gatedProduct(dst, up, gate []float32) { gatedProductGo(dst, up, gate) }

func gatedGradient(du, dg, da, up, gate []float32) { gatedGradientGo(du, dg, da, up, gate) }
