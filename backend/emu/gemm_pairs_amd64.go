//go:build !noasm

package emu

import (
	"math"
	"time"

	"golang.org/x/sys/cpu"

	"octet/fp8"
)

// hasBF16Pairs says whether this processor has what bf16Pairs needs beside the rest
// of AVX-512.
func hasBF16Pairs() bool { return cpu.X86.HasAVX512BF16 && cpu.X86.HasAVX512VBMI }

// bf16PairsAreFaster measures whether VDPBF16PS multiplies faster than FMA, by the
// best of a few bursts of some ten microseconds each. A core of Zen 5 does as many
// of the one as of the other in a second, Emerald Rapids a quarter as many, and the
// one is two of the other. The bits are the same, so that a wrong answer costs time only.
func bf16PairsAreFaster() bool {
	const bursts, calls, depth = 5, 48, 64
	k := &avx512Kernel
	a, b, c := make([]float32, k.mr*depth), make([]float32, depth*k.nr), make([]float32, k.mr*k.nr)
	fma, pairs := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
	for range bursts {
		start := time.Now()
		for range calls {
			k.multiply(depth, k.mr, a, depth, 1, b, c, false)
		}
		middle := time.Now()
		for range calls {
			bf16Pairs.multiply(depth, k.mr, a, depth, 1, b, c, false)
		}
		fma, pairs = min(fma, middle.Sub(start)), min(pairs, time.Since(middle))
	}
	return pairs < 2*fma // a word is two elements
}

// bf16Pairs goes with avx512Kernel.
var bf16Pairs = pairKernel{
	name: "avx512bf16", reuse: 32,
	multiply: func(k, rows int, a []float32, step, stepK int, b, c []float32, load bool) {
		switch {
		case rows <= 4:
			multiply4x32BF16(k, &a[0], step, stepK, &b[0], &c[0], load)
		case rows <= 8:
			multiply8x32BF16(k, &a[0], step, stepK, &b[0], &c[0], load)
		default:
			multiply14x32BF16(k, &a[0], step, stepK, &b[0], &c[0], load)
		}
	},
	decode: func(dst []float32, step, chunk int, src matrix, rows, cols int, along bool) {
		switch {
		case rows == 0 || cols == 0:
		case src.dtype == fp8.BF16 && along:
			decodePairsAlong16(&dst[0], step, chunk, &src.u16[0], src.ld, rows, cols)
		case src.dtype == fp8.BF16:
			decodePairsDown16(&dst[0], step, chunk, &src.u16[0], src.ld, rows, cols)
		case along:
			decodePairsAlong(&dst[0], step, chunk, &src.u8[0], src.ld, rows, cols, &bf16Tables[src.dtype])
		default:
			decodePairsDown(&dst[0], step, chunk, &src.u8[0], src.ld, rows, cols, &bf16Tables[src.dtype])
		}
	},
	least: func(least uint16, x []uint16) uint16 {
		whole := len(x) &^ 31
		if whole > 0 {
			least = min(least, leastBF16AVX512(&x[0], whole))
		}
		return leastBF16Go(least, x[whole:])
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
func leastBF16AVX512(x *uint16, n int) uint16
