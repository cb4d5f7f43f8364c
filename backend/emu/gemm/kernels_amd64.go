//go:build !noasm

package gemm

import (
	"math"
	"sync"
	"unsafe"

	"golang.org/x/sys/cpu"

	"octet/backend/emu/memory"
	"octet/fp8"
)

// Kernels returns the kernels that this machine can run, the fastest first.
func Kernels() []*Kernel { return amd64Kernels() }

var amd64Kernels = sync.OnceValue(func() (list []*Kernel) {
	x := &cpu.X86
	if x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL {
		if hasBF16Pairs() && bf16PairsAreFaster() {
			AVX512.Pairs = &bf16Pairs
		}
		if x.HasAVX512VNNI {
			AVX512.Integers = &avx512VNNI
		}
		list = append(list, &AVX512)
	}
	if x.HasAVX2 && x.HasFMA && x.HasF16C {
		if x.HasAVXVNNI {
			AVX2.Integers = &avxVNNI
		}
		list = append(list, &AVX2)
	}
	return append(list, &Go)
})

// AVX512 uses 28 of the 32 registers as accumulators: fourteen loads of A and
// two of B feed 28 FMAs.
var AVX512 = Kernel{
	Name: "avx512", MR: 14, NR: 32, tall: 14, TransposeRows: 16, block: 56,
	Multiply: func(k, rows int, a []float32, step, stepK int, b, c []float32, load bool) {
		switch {
		case rows <= 4:
			multiply4x32AVX512(k, &a[0], step, stepK, &b[0], &c[0], load)
		case rows <= 8:
			multiply8x32AVX512(k, &a[0], step, stepK, &b[0], &c[0], load)
		default:
			multiply14x32AVX512(k, &a[0], step, stepK, &b[0], &c[0], load)
		}
	},
	Decode: func(dst []float32, step, chunk int, src memory.Matrix, rows, cols int) {
		if rows == 0 || cols == 0 {
			return
		}
		switch c := classOf(src.DType); {
		case src.DType == fp8.F32:
			decodeF32AVX512(&dst[0], step, chunk, &src.F32[0], src.LD, rows, cols)
		case src.DType == fp8.BF16:
			decodeBF16AVX512(&dst[0], step, chunk, &src.U16[0], src.LD, rows, cols)
		case c == other:
			decodeCodes(dst, 32, step, chunk, src, rows, cols)
		case c == e5m2:
			decodeE5M2AVX512(&dst[0], step, chunk, &src.U8[0], src.LD, rows, cols)
		default:
			decodeE4M3AVX512(&dst[0], step, chunk, &src.U8[0], src.LD, rows, cols, firstSpecial(src.DType))
		}
	},
	Transpose: func(dst []float32, step int, src []float32, ld, k int) {
		transpose16AVX512(&dst[0], step, &src[0], ld, k)
	},
	gather: func(dst, src []uint8, ld, rows, k int) {
		r := 0
		for ; r+16 <= rows; r += 16 {
			gather16AVX512(&dst[r], &src[r*ld], ld, k)
		}
		gatherRows(dst, 32, src, ld, r, rows, 0, k)
	},
	stream: func(k, rows int, a []float32, step int, codes []uint8, d fp8.DType, c []float32) float32 {
		wide := classOf(d) == e5m2
		switch {
		case wide && rows == 1:
			stream1E5M2AVX512(k, &codes[0], &a[0], step, &c[0])
		case wide:
			stream4E5M2AVX512(k, &codes[0], &a[0], step, &c[0])
		case rows == 1:
			stream1E4M3AVX512(k, &codes[0], &a[0], step, &c[0], firstSpecial(d))
		default:
			stream4E4M3AVX512(k, &codes[0], &a[0], step, &c[0], firstSpecial(d))
		}
		if wide {
			return 1
		}
		return 0x1p8
	},
	addScaled: func(acc, part []float32, rows int, sa, sb []float32, first bool) {
		addScaled32AVX512(&acc[0], &part[0], rows, &sa[0], &sb[0], first)
	},
	prefetch: prefetchOut,
	finish: func(acc []float32, t *tileOut) {
		if t.hasF16() {
			finishRows(acc, 32, t)
		} else {
			finish14x32AVX512(&acc[0], t)
		}
	},
}

func prefetchOut(t *tileOut) {
	out, residual := (*memory.Matrix)(&t.out), (*memory.Matrix)(&t.residual)
	prefetchTile(t, out)
	if residual.DType != fp8.Invalid && residual.Address(0, 0) != out.Address(0, 0) {
		prefetchTile(t, residual)
	}
}

// prefetchTile prefetches the tile's cache lines of m, a matrix of the output's shape.
func prefetchTile(t *tileOut, m *memory.Matrix) {
	size := m.DType.Size()
	prefetchWrite(m.Address(t.i, t.j), m.LD*size, t.rows, t.cols*size)
}

// AVX2 uses twelve of the sixteen registers as accumulators. Its tiles are small,
// so the overhead of a call matters; a call computes eight tiles.
var AVX2 = Kernel{
	Name: "avx2", MR: 6, NR: 16, tall: 48, TransposeRows: 8, block: 96, narrow: true,
	Multiply: func(k, rows int, a []float32, step, stepK int, b, c []float32, load bool) {
		multiply6x16AVX2(k, rows, &a[0], step, stepK, &b[0], &c[0], load)
	},
	Decode: decodeAVX2,
	Transpose: func(dst []float32, step int, src []float32, ld, k int) {
		transpose8AVX2(&dst[0], step, &src[0], ld, k)
	},
	gather: func(dst, src []uint8, ld, rows, k int) {
		whole := k &^ 31
		r := 0
		for ; r+8 <= rows; r += 8 {
			for l := 0; l < whole; l += 32 {
				gather8AVX2(&dst[l*16+r], &src[r*ld+l], ld)
			}
		}
		gatherRows(dst, 16, src, ld, 0, r, whole, k)
		gatherRows(dst, 16, src, ld, r, rows, 0, k)
	},
	addScaled: func(acc, part []float32, rows int, sa, sb []float32, first bool) {
		addScaled16AVX2(&acc[0], &part[0], rows, &sa[0], &sb[0], first)
	},
	Integers: &avx2Integers,
	finish: func(acc []float32, t *tileOut) {
		// AVX2 has no masks, so only whole rows are vectorized. FP8 outputs are rare.
		if t.cols == 16 && !t.out.DType.IsQuantized() && !t.hasF16() {
			finish6x16AVX2(&acc[0], t)
		} else {
			finishRows(acc, 16, t)
		}
	},
}

// gatherRows is gather for rows [from, to) and columns [l, k), code by code. It defines
// gather, and handles the remainders of the vector versions.
func gatherRows(dst []uint8, nr int, src []uint8, ld, from, to, l, k int) {
	for i := from; i < to; i++ {
		for j, code := range src[i*ld:][l:k] {
			dst[(l+j)*nr+i] = code
		}
	}
}

// firstSpecial returns the lowest code of an E4M3 format that is infinite or NaN. The
// decoders give it and the codes above it the exponent of infinity.
func firstSpecial(d fp8.DType) uint32 { return uint32(newFieldsInF16(d).largest) + 1 }

// fieldsInF16 holds the constants with which decodeFieldsAVX2 decodes a format of at most
// four exponent bits.
type fieldsInF16 struct {
	shift, signShift        uint64 // bits from a code's place to F16's
	rebias                  float32
	magnitude, largest, top uint16 // a code without its sign, of the largest value; F16's top exponent
}

// newFieldsInF16 returns the zero value for a format that F16 cannot express in this way: with
// more exponent bits, and with codes that do not stand for a sign and a magnitude.
func newFieldsInF16(d fp8.DType) fieldsInF16 {
	f := d.Format()
	if f.Kind != fp8.Float || f.Bits > 8 || f.Exponent > 4 || f.Special > fp8.IEEE {
		return fieldsInF16{}
	}
	return fieldsInF16{
		shift: uint64(10 - f.Mantissa), signShift: uint64(16 - f.Bits),
		rebias:    math.Float32frombits(uint32(127+15-f.Bias) << 23),
		magnitude: 1<<(f.Bits-1) - 1, largest: uint16(d.Nearest(d.Max(), fp8.Saturate)), top: 0x7c00,
	}
}

// decodeAVX2 decodes whole vectors; the plain Go decoder handles the remainder.
func decodeAVX2(dst []float32, step, chunk int, src memory.Matrix, rows, cols int) {
	const nr = 16
	whole := cols &^ (nr - 1)
	if rows > 0 && whole > 0 {
		switch {
		case src.DType == fp8.F32:
			decodeF32AVX2(&dst[0], step, chunk, &src.F32[0], src.LD, rows, whole)
		case src.DType == fp8.BF16:
			decodeBF16AVX2(&dst[0], step, chunk, &src.U16[0], src.LD, rows, whole)
		case classOf(src.DType) == e5m2:
			decodeE5M2AVX2(&dst[0], step, chunk, &src.U8[0], src.LD, rows, whole)
		default:
			if f := newFieldsInF16(src.DType); f.magnitude > 0 {
				decodeFieldsAVX2(&dst[0], step, chunk, &src.U8[0], src.LD, rows, whole, &f)
			} else {
				decodeCodes(dst, nr, step, chunk, src, rows, whole)
			}
		}
	}
	if rows > 0 && whole < cols {
		decodeGo(dst[whole/nr*chunk:], step, chunk, src.Sub(0, whole), rows, cols-whole)
	}
}

// Formats as the assembly sees them, through go_asm.h.
const (
	//lint:ignore U1000 used in assembly
	asmF32 = uint8(fp8.F32)
	//lint:ignore U1000 used in assembly
	asmBF16 = uint8(fp8.BF16)
)

//go:noescape
func multiply14x32AVX512(k int, a *float32, step, stepK int, b, c *float32, load bool)

//go:noescape
func multiply8x32AVX512(k int, a *float32, step, stepK int, b, c *float32, load bool)

//go:noescape
func multiply4x32AVX512(k int, a *float32, step, stepK int, b, c *float32, load bool)

//go:noescape
func decodeF32AVX512(dst *float32, step, chunk int, src *float32, ld, rows, cols int)

//go:noescape
func decodeBF16AVX512(dst *float32, step, chunk int, src *uint16, ld, rows, cols int)

//go:noescape
func decodeE5M2AVX512(dst *float32, step, chunk int, src *uint8, ld, rows, cols int)

//go:noescape
func decodeE4M3AVX512(dst *float32, step, chunk int, src *uint8, ld, rows, cols int, special uint32)

//go:noescape
func transpose16AVX512(dst *float32, step int, src *float32, ld, k int)

//go:noescape
func gather16AVX512(dst, src *uint8, ld, k int)

//go:noescape
func gather8AVX2(dst, src *uint8, ld int)

//go:noescape
func stream1E5M2AVX512(k int, codes *uint8, a *float32, step int, c *float32)

//go:noescape
func stream4E5M2AVX512(k int, codes *uint8, a *float32, step int, c *float32)

//go:noescape
func stream1E4M3AVX512(k int, codes *uint8, a *float32, step int, c *float32, special uint32)

//go:noescape
func stream4E4M3AVX512(k int, codes *uint8, a *float32, step int, c *float32, special uint32)

//go:noescape
func addScaled32AVX512(acc, part *float32, rows int, sa, sb *float32, first bool)

//go:noescape
func addScaled16AVX2(acc, part *float32, rows int, sa, sb *float32, first bool)

//go:noescape
func prefetchWrite(p unsafe.Pointer, step, rows, bytes int)

//go:noescape
func finish14x32AVX512(acc *float32, t *tileOut)

//go:noescape
func multiply6x16AVX2(k, rows int, a *float32, step, stepK int, b, c *float32, load bool)

//go:noescape
func decodeF32AVX2(dst *float32, step, chunk int, src *float32, ld, rows, cols int)

//go:noescape
func decodeBF16AVX2(dst *float32, step, chunk int, src *uint16, ld, rows, cols int)

//go:noescape
func decodeE5M2AVX2(dst *float32, step, chunk int, src *uint8, ld, rows, cols int)

//go:noescape
func decodeFieldsAVX2(dst *float32, step, chunk int, src *uint8, ld, rows, cols int, f *fieldsInF16)

//go:noescape
func transpose8AVX2(dst *float32, step int, src *float32, ld, k int)

//go:noescape
func finish6x16AVX2(acc *float32, t *tileOut)
