//go:build !noasm

package attention

import "octet/backend/emu/gemm"

// inPlace returns the version of a kernel's multiply for row-major b and c, or nil.
func inPlace(kernel *gemm.Kernel) multiplyInto {
	switch kernel {
	case &gemm.AVX512:
		return multiplyIntoAVX512
	case &gemm.AVX2:
		return multiplyIntoAVX2
	}
	return nil
}

// multiplyIntoAVX512 computes at least four rows: a row has two accumulators, and eight
// are needed to hide the latency of FMAs.
func multiplyIntoAVX512(k, rows, cols int, a []float32, step, stepK int, b []float32, ldb int, c []float32, ldc int, load bool) {
	switch {
	case rows <= 4:
		multiplyInto4x32AVX512(k, rows, cols, &a[0], step, stepK, &b[0], ldb, &c[0], ldc, load)
	case rows <= 8:
		multiplyInto8x32AVX512(k, rows, cols, &a[0], step, stepK, &b[0], ldb, &c[0], ldc, load)
	default:
		multiplyInto14x32AVX512(k, rows, cols, &a[0], step, stepK, &b[0], ldb, &c[0], ldc, load)
	}
}

func multiplyIntoAVX2(k, rows, cols int, a []float32, step, stepK int, b []float32, ldb int, c []float32, ldc int, load bool) {
	multiplyInto6x16AVX2(k, rows, cols, &a[0], step, stepK, &b[0], ldb, &c[0], ldc, load)
}

//go:noescape
func multiplyInto14x32AVX512(k, rows, cols int, a *float32, step, stepK int, b *float32, ldb int, c *float32, ldc int, load bool)

//go:noescape
func multiplyInto8x32AVX512(k, rows, cols int, a *float32, step, stepK int, b *float32, ldb int, c *float32, ldc int, load bool)

//go:noescape
func multiplyInto4x32AVX512(k, rows, cols int, a *float32, step, stepK int, b *float32, ldb int, c *float32, ldc int, load bool)

//go:noescape
func multiplyInto6x16AVX2(k, rows, cols int, a *float32, step, stepK int, b *float32, ldb int, c *float32, ldc int, load bool)
