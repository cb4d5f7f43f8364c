//go:build !noasm

package attention

import "octet/backend/emu/gemm"

// inPlace returns the version of a kernel's multiply for row-major b and c, or nil.
func inPlace(kernel *gemm.Kernel) multiplyInto {
	switch kernel {
	case &gemm.AVX512:
		return multiplyIntoAVX512
	case &gemm.AVX2:
		return multiplyInto6x16AVX2
	}
	return nil
}

// pairsInPlace returns the version of a kernel's pairs for row-major b and c, or nil.
func pairsInPlace(kernel *gemm.Kernel) multiplyInto {
	if kernel == &gemm.AVX512 {
		return multiplyIntoBF16
	}
	return nil
}

// multiplyIntoAVX512 computes at least four rows: a row has two accumulators, and eight
// are needed to hide the latency of FMAs.
func multiplyIntoAVX512(k, rows, cols int, a *float32, step, stepK int, b *float32, ldb int, c *float32, ldc int, load bool) {
	switch {
	case rows <= 4:
		multiplyInto4x32AVX512(k, rows, cols, a, step, stepK, b, ldb, c, ldc, load)
	case rows <= 8:
		multiplyInto8x32AVX512(k, rows, cols, a, step, stepK, b, ldb, c, ldc, load)
	default:
		multiplyInto14x32AVX512(k, rows, cols, a, step, stepK, b, ldb, c, ldc, load)
	}
}

// multiplyIntoBF16 multiplies words of pairs, as gemm's VDPBF16PS does; k counts words.
func multiplyIntoBF16(k, rows, cols int, a *float32, step, stepK int, b *float32, ldb int, c *float32, ldc int, load bool) {
	switch {
	case rows <= 4:
		multiplyInto4x32BF16(k, rows, cols, a, step, stepK, b, ldb, c, ldc, load)
	case rows <= 8:
		multiplyInto8x32BF16(k, rows, cols, a, step, stepK, b, ldb, c, ldc, load)
	default:
		multiplyInto14x32BF16(k, rows, cols, a, step, stepK, b, ldb, c, ldc, load)
	}
}

//go:noescape
func multiplyInto14x32AVX512(k, rows, cols int, a *float32, step, stepK int, b *float32, ldb int, c *float32, ldc int, load bool)

//go:noescape
func multiplyInto8x32AVX512(k, rows, cols int, a *float32, step, stepK int, b *float32, ldb int, c *float32, ldc int, load bool)

//go:noescape
func multiplyInto4x32AVX512(k, rows, cols int, a *float32, step, stepK int, b *float32, ldb int, c *float32, ldc int, load bool)

//go:noescape
func multiplyInto14x32BF16(k, rows, cols int, a *float32, step, stepK int, b *float32, ldb int, c *float32, ldc int, load bool)

//go:noescape
func multiplyInto8x32BF16(k, rows, cols int, a *float32, step, stepK int, b *float32, ldb int, c *float32, ldc int, load bool)

//go:noescape
func multiplyInto4x32BF16(k, rows, cols int, a *float32, step, stepK int, b *float32, ldb int, c *float32, ldc int, load bool)

//go:noescape
func multiplyInto6x16AVX2(k, rows, cols int, a *float32, step, stepK int, b *float32, ldb int, c *float32, ldc int, load bool)
