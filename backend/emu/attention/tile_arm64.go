//go:build !noasm

package attention

import (
	"unsafe"

	"octet/backend/emu/gemm"
)

// inPlace returns the version of a kernel's multiply for row-major b and c, or nil.
func inPlace(kernel *gemm.Kernel) multiplyInto {
	if kernel == &gemm.NEON {
		return multiplyIntoNEON
	}
	return nil
}

// pairsInPlace returns the version of a kernel's pairs for row-major b and c: none.
func pairsInPlace(*gemm.Kernel) multiplyInto { return nil }

func multiplyIntoNEON(k, rows, cols int, a *float32, step, stepK int, b *float32, ldb int, c *float32, ldc int, load bool) {
	for j := range (cols + 15) / 16 {
		at := uintptr(64 * j) // bytes of 16 columns
		gemm.Multiply6x16NEON(k, rows, a, step, stepK, (*float32)(unsafe.Add(unsafe.Pointer(b), at)), ldb, (*float32)(unsafe.Add(unsafe.Pointer(c), at)), ldc, load)
	}
}
