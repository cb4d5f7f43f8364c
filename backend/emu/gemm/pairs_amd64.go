//go:build !noasm

package gemm

import (
	"math"
	"time"

	"golang.org/x/sys/cpu"

	"octet/backend/emu/memory"
	"octet/fp8"
)

// hasBF16Pairs reports whether this processor has the extensions of AVX-512 that
// bf16Pairs needs.
func hasBF16Pairs() bool { return cpu.X86.HasAVX512BF16 && cpu.X86.HasAVX512VBMI }

// bf16PairsAreFaster measures whether VDPBF16PS multiplies faster than FMA: the best of a
// few bursts of some ten microseconds each. One VDPBF16PS does the work of two FMAs. Zen 5
// issues as many of them as of FMAs, Emerald Rapids a quarter as many. Both give the same
// bits, so a wrong choice costs only time.
func bf16PairsAreFaster() bool {
	const bursts, calls, depth = 5, 48, 64
	k := &AVX512
	a, b, c := make([]float32, k.MR*depth), make([]float32, depth*k.NR), make([]float32, k.MR*k.NR)
	fma, pairs := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
	for range bursts {
		start := time.Now()
		for range calls {
			k.Multiply(depth, k.MR, a, depth, 1, b, c, false)
		}
		middle := time.Now()
		for range calls {
			bf16Pairs.Multiply(depth, k.MR, a, depth, 1, b, c, false)
		}
		fma, pairs = min(fma, middle.Sub(start)), min(pairs, time.Since(middle))
	}
	return pairs < 2*fma // a word has two elements
}

// bf16Pairs is AVX512's pairs.
var bf16Pairs = PairKernel{
	Name: "avx512bf16", reuse: 32,
	Multiply: func(k, rows int, a []float32, step, stepK int, b, c []float32, load bool) {
		switch {
		case rows <= 4:
			multiply4x32BF16(k, &a[0], step, stepK, &b[0], &c[0], load)
		case rows <= 8:
			multiply8x32BF16(k, &a[0], step, stepK, &b[0], &c[0], load)
		default:
			multiply14x32BF16(k, &a[0], step, stepK, &b[0], &c[0], load)
		}
	},
	Decode: func(dst []float32, step, chunk int, src memory.Matrix, rows, cols int, along bool) {
		switch {
		case rows == 0 || cols == 0:
		case src.DType == fp8.BF16 && along:
			decodePairsAlong16(&dst[0], step, chunk, &src.U16[0], src.LD, rows, cols)
		case src.DType == fp8.BF16:
			decodePairsDown16(&dst[0], step, chunk, &src.U16[0], src.LD, rows, cols)
		case along:
			decodePairsAlong(&dst[0], step, chunk, &src.U8[0], src.LD, rows, cols, bf16TableOf(src.DType))
		default:
			decodePairsDown(&dst[0], step, chunk, &src.U8[0], src.LD, rows, cols, bf16TableOf(src.DType))
		}
	},
	Smallest: func(smallest uint16, x []uint16) uint16 {
		whole := len(x) &^ 31
		if whole > 0 {
			smallest = min(smallest, minBF16AVX512(&x[0], whole))
		}
		return minBF16Go(smallest, x[whole:])
	},
	scale: func(words, scales []float32) {
		if len(scales) > 0 {
			scalePairsAVX512(&words[0], &scales[0], len(scales))
		}
	},
}

//go:noescape
func multiply14x32BF16(k int, a *float32, step, stepK int, b, c *float32, load bool)

//go:noescape
func multiply8x32BF16(k int, a *float32, step, stepK int, b, c *float32, load bool)

//go:noescape
func multiply4x32BF16(k int, a *float32, step, stepK int, b, c *float32, load bool)

//go:noescape
func decodePairsAlong(dst *float32, step, chunk int, src *uint8, ld, rows, cols int, table *bf16Table)

//go:noescape
func decodePairsDown(dst *float32, step, chunk int, src *uint8, ld, rows, cols int, table *bf16Table)

//go:noescape
func decodePairsAlong16(dst *float32, step, chunk int, src *uint16, ld, rows, cols int)

//go:noescape
func decodePairsDown16(dst *float32, step, chunk int, src *uint16, ld, rows, cols int)

// n is a multiple of 32.
//
//go:noescape
func minBF16AVX512(x *uint16, n int) uint16

//go:noescape
func scalePairsAVX512(words, scales *float32, n int)
