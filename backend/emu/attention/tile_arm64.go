//go:build !noasm

package attention

import "octet/backend/emu/gemm"

// inPlace returns the version of a kernel's multiply for row-major b and c, or nil.
func inPlace(kernel *gemm.Kernel) multiplyInto {
	if kernel == &gemm.NEON {
		return multiplyIntoNEON
	}
	return nil
}

func multiplyIntoNEON(k, rows, cols int, a []float32, step, stepK int, b []float32, ldb int, c []float32, ldc int, load bool) {
	for j := 0; j < cols; j += 16 {
		gemm.Multiply6x16NEON(k, rows, &a[0], step, stepK, &b[j], ldb, &c[j], ldc, load)
	}
}
