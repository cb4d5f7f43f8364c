//go:build (amd64 || arm64) && !noasm

package gemm

import (
	"octet/backend/emu/memory"
	"octet/fp8"
)

// This file has what kernels in assembly leave to Go.

// hasF16 reports whether the output or the residual is F16, which the assembly of finish
// does not handle.
func (t *tileOut) hasF16() bool { return t.out.DType == fp8.F16 || t.residual.DType == fp8.F16 }

// decodeCodes is Kernel.Decode for tiles of nr columns and formats without a decoder of
// their own: F16, and most of up to eight bits.
func decodeCodes(dst []float32, nr, step, chunk int, src memory.Matrix, rows, cols int) {
	width := nr
	if chunk == nr { // a row is contiguous
		width = cols
	}
	for i := range rows {
		for j := 0; j < cols; j += width {
			n := min(width, cols-j)
			to, from := dst[i*step+j/nr*chunk:][:n], i*src.LD+j
			if src.DType == fp8.F16 {
				fp8.Dequantize16(to, src.U16[from:from+n], 1)
			} else {
				fp8.Dequantize8(to, src.U8[from:from+n], src.DType, 1)
			}
		}
	}
}
