//go:build !noasm

package gemm

import (
	"sync"

	"golang.org/x/sys/cpu"

	"octet/backend/emu/memory"
	"octet/backend/emu/simd"
	"octet/fp8"
)

// Kernels returns the kernels that this machine can run, the fastest first.
// Every 64-bit Arm has ASIMD.
func Kernels() []*Kernel { return arm64Kernels() }

var arm64Kernels = sync.OnceValue(func() []*Kernel {
	if cpu.ARM64.HasASIMDDP {
		NEON.Integers = &neonDots
	}
	return []*Kernel{&NEON, &Go}
})

// NEON uses 24 of the 32 registers as accumulators: ten registers of loads feed 24
// FMAs, so that a core with four vector units needs two loads per cycle.
var NEON = Kernel{
	Name: "neon", MR: 6, NR: 16, tall: 6, TransposeRows: 4, block: 96,
	Multiply: func(k, rows int, a []float32, step, stepK int, b, c []float32, load bool) {
		Multiply6x16NEON(k, rows, &a[0], step, stepK, &b[0], 16, &c[0], 16, load)
	},
	Decode: decodeNEON,
	Transpose: func(dst []float32, step int, src []float32, ld, k int) {
		transpose4NEON(&dst[0], step, &src[0], ld, k)
	},
	gather: func(dst, src []uint8, ld, rows, k int) {
		simd.Transpose8(dst, 16, src, ld, rows, k, false)
	},
	finish: func(acc []float32, t *tileOut) {
		// FP8 outputs are rare.
		if t.cols == 16 && !t.out.DType.IsQuantized() && !t.hasF16() {
			finish6x16NEON(&acc[0], t)
		} else {
			finishRows(acc, 16, t)
		}
	},
}

// decodeNEON decodes whole runs; the plain Go decoder handles the remainder.
func decodeNEON(dst []float32, step, chunk int, src memory.Matrix, rows, cols int) {
	const nr = 16
	whole := cols &^ (nr - 1)
	if rows > 0 && whole > 0 {
		switch c := classOf(src.DType); {
		case src.DType == fp8.F32:
			decodeF32NEON(&dst[0], step, chunk, &src.F32[0], src.LD, rows, whole)
		case src.DType == fp8.BF16:
			decodeBF16NEON(&dst[0], step, chunk, &src.U16[0], src.LD, rows, whole)
		case c == other:
			decodeCodes(dst, nr, step, chunk, src, rows, whole)
		case c == e5m2:
			decodeE5M2NEON(&dst[0], step, chunk, &src.U8[0], src.LD, rows, whole)
		case src.DType.Format().Special == fp8.IEEE:
			decodeE4M3NEON(&dst[0], step, chunk, &src.U8[0], src.LD, rows, whole, 0x78)
		default:
			decodeE4M3NEON(&dst[0], step, chunk, &src.U8[0], src.LD, rows, whole, 0x7f)
		}
	}
	if rows > 0 && whole < cols {
		decodeGo(dst[whole/nr*chunk:], step, chunk, src.Sub(0, whole), rows, cols-whole)
	}
}

// Formats as the assembly sees them, through go_asm.h.
//
//lint:ignore U1000 used in assembly
const asmBF16 = uint8(fp8.BF16)

// Multiply6x16NEON is multiply with rows of b that are ldb apart and rows of c that are
// ldc apart. It stores rows rows, at least one.
//
//go:noescape
func Multiply6x16NEON(k, rows int, a *float32, step, stepK int, b *float32, ldb int, c *float32, ldc int, load bool)

//go:noescape
func decodeF32NEON(dst *float32, step, chunk int, src *float32, ld, rows, cols int)

//go:noescape
func decodeBF16NEON(dst *float32, step, chunk int, src *uint16, ld, rows, cols int)

//go:noescape
func decodeE5M2NEON(dst *float32, step, chunk int, src *uint8, ld, rows, cols int)

//go:noescape
func decodeE4M3NEON(dst *float32, step, chunk int, src *uint8, ld, rows, cols int, special uint32)

//go:noescape
func transpose4NEON(dst *float32, step int, src *float32, ld, k int)

//go:noescape
func finish6x16NEON(acc *float32, t *tileOut)
