//go:build amd64 && !noasm

package simd

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// The instruction sets of the kernels. Tests turn them off, the wider one first, to
// reach the narrower kernels and the twins.
var (
	haveVectors = cpu.X86.HasAVX2 && cpu.X86.HasFMA
	haveAVX512  = haveVectors && cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512DQ
)

// Tables of constants. Each constant fills an AVX2 vector; AVX-512 kernels broadcast it.
var (
	expVectors    [8 * len(expConstants)]float32
	exp2Vectors   [8 * len(exp2Constants)]float32
	normalVectors [4 * normalLen]float64
)

// firstLanes holds the mask of the first n of sixteen lanes at index 16−n.
var firstLanes [32]int32

func init() {
	broadcast(expVectors[:], expConstants[:])
	broadcast(exp2Vectors[:], exp2Constants[:])
	broadcast(normalVectors[:], (*[normalLen]float64)(unsafe.Pointer(&normalConstants))[:])
	for i := range 16 {
		firstLanes[i] = -1
	}
}

// normalLen is the number of constants in a normalTable.
const normalLen = int(unsafe.Sizeof(normalTable{}) / 8)

// broadcast repeats each constant in its vector.
func broadcast[F float32 | float64](vectors, constants []F) {
	width := len(vectors) / len(constants)
	for i := range vectors {
		vectors[i] = constants[i/width]
	}
}

// Pause runs n PAUSE instructions, 3 to 45 ns each. Meanwhile the core's other thread
// gets its execution units, and leaving a spin-wait loop does not flush the pipeline
// (Intel's optimization manual, on spin-wait loops).
func Pause(n int)

//go:noescape
func prefetchRows(p unsafe.Pointer, step, rows, bytes int)

// In all kernels n is positive and a multiple of 16, or of the number of lanes. Kernels
// with lanes set them, so that the twin can add the remaining elements; a returned sum
// excludes those.

func addVectors(dst, x *float32, n int) {
	if haveAVX512 {
		addAVX512(dst, x, n)
	} else {
		addAVX2(dst, x, n)
	}
}

//go:noescape
func addAVX512(dst, x *float32, n int)

//go:noescape
func addAVX2(dst, x *float32, n int)

func multiplyVectors(dst, x, y *float32, n int) {
	if haveAVX512 {
		multiplyAVX512(dst, x, y, n)
	} else {
		multiplyAVX2(dst, x, y, n)
	}
}

//go:noescape
func multiplyAVX512(dst, x, y *float32, n int)

//go:noescape
func multiplyAVX2(dst, x, y *float32, n int)

func scaleVectors(x *float32, n int, scale float32) {
	if haveAVX512 {
		scaleAVX512(x, n, scale)
	} else {
		scaleAVX2(x, n, scale)
	}
}

//go:noescape
func scaleAVX512(x *float32, n int, scale float32)

//go:noescape
func scaleAVX2(x *float32, n int, scale float32)

func maxMagnitudesVectors(dst, x *float32, n int) {
	if haveAVX512 {
		maxMagnitudesAVX512(dst, x, n)
	} else {
		maxMagnitudesAVX2(dst, x, n)
	}
}

//go:noescape
func maxMagnitudesAVX512(dst, x *float32, n int)

//go:noescape
func maxMagnitudesAVX2(dst, x *float32, n int)

func expLanesVectors(lanes *[16]float32, dst, x *float32, n int, scale, shift float32) float32 {
	if haveAVX512 {
		return expLanesAVX512(lanes, dst, x, n, scale, shift)
	}
	return expLanesAVX2(lanes, dst, x, n, scale, shift)
}

//go:noescape
func expLanesAVX512(lanes *[16]float32, dst, x *float32, n int, scale, shift float32) float32

//go:noescape
func expLanesAVX2(lanes *[16]float32, dst, x *float32, n int, scale, shift float32) float32

func maxVectors(x *float32, n int) float32 {
	if haveAVX512 {
		return maxAVX512(x, n)
	}
	return maxAVX2(x, n)
}

//go:noescape
func maxAVX512(x *float32, n int) float32

//go:noescape
func maxAVX2(x *float32, n int) float32

func dotLanesVectors(lanes *[32]float32, x, y *float32, n int) float32 {
	if haveAVX512 {
		return dotLanesAVX512(lanes, x, y, n)
	}
	return dotLanesAVX2(lanes, x, y, n)
}

//go:noescape
func dotLanesAVX512(lanes *[32]float32, x, y *float32, n int) float32

//go:noescape
func dotLanesAVX2(lanes *[32]float32, x, y *float32, n int) float32

func gainLanesVectors(lanes *[32]float32, dgain, x, dy, gain *float32, inv float32, n int) float32 {
	if haveAVX512 {
		return gainLanesAVX512(lanes, dgain, x, dy, gain, inv, n)
	}
	return gainLanesAVX2(lanes, dgain, x, dy, gain, inv, n)
}

//go:noescape
func gainLanesAVX512(lanes *[32]float32, dgain, x, dy, gain *float32, inv float32, n int) float32

//go:noescape
func gainLanesAVX2(lanes *[32]float32, dgain, x, dy, gain *float32, inv float32, n int) float32

func scaleByGainVectors(dst, x, gain *float32, inv float32, n int) {
	if haveAVX512 {
		scaleByGainAVX512(dst, x, gain, inv, n)
	} else {
		scaleByGainAVX2(dst, x, gain, inv, n)
	}
}

//go:noescape
func scaleByGainAVX512(dst, x, gain *float32, inv float32, n int)

//go:noescape
func scaleByGainAVX2(dst, x, gain *float32, inv float32, n int)

func normGradientVectors(dx, x, dy, gain *float32, inv, mean float32, n int) {
	if haveAVX512 {
		normGradientAVX512(dx, x, dy, gain, inv, mean, n)
	} else {
		normGradientAVX2(dx, x, dy, gain, inv, mean, n)
	}
}

//go:noescape
func normGradientAVX512(dx, x, dy, gain *float32, inv, mean float32, n int)

//go:noescape
func normGradientAVX2(dx, x, dy, gain *float32, inv, mean float32, n int)

func squareLanesVectors(lanes *[32]float64, x *float32, n int) {
	if haveAVX512 {
		squareLanesAVX512(lanes, x, n)
	} else {
		squareLanesAVX2(lanes, x, n)
	}
}

//go:noescape
func squareLanesAVX512(lanes *[32]float64, x *float32, n int)

//go:noescape
func squareLanesAVX2(lanes *[32]float64, x *float32, n int)

func rotateVectors(dst, x, cos, sin *float32, heads, half int, sign float32) {
	if haveAVX512 {
		rotateAVX512(dst, x, cos, sin, heads, half, sign)
	} else {
		rotateAVX2(dst, x, cos, sin, heads, half, sign)
	}
}

//go:noescape
func rotateAVX512(dst, x, cos, sin *float32, heads, half int, sign float32)

//go:noescape
func rotateAVX2(dst, x, cos, sin *float32, heads, half int, sign float32)

func mulSiLUVectors(dst, up, gate *float32, n int) {
	if haveAVX512 {
		mulSiLUAVX512(dst, up, gate, n)
	} else {
		mulSiLUAVX2(dst, up, gate, n)
	}
}

//go:noescape
func mulSiLUAVX512(dst, up, gate *float32, n int)

//go:noescape
func mulSiLUAVX2(dst, up, gate *float32, n int)

func mulSiLUGradientVectors(du, dg, da, up, gate *float32, n int) {
	if haveAVX512 {
		mulSiLUGradientAVX512(du, dg, da, up, gate, n)
	} else {
		mulSiLUGradientAVX2(du, dg, da, up, gate, n)
	}
}

//go:noescape
func mulSiLUGradientAVX512(du, dg, da, up, gate *float32, n int)

//go:noescape
func mulSiLUGradientAVX2(du, dg, da, up, gate *float32, n int)

func reluVectors(dst, x *float32, n int) {
	if haveAVX512 {
		reluAVX512(dst, x, n)
	} else {
		reluAVX2(dst, x, n)
	}
}

//go:noescape
func reluAVX512(dst, x *float32, n int)

//go:noescape
func reluAVX2(dst, x *float32, n int)

func reluGradientVectors(dx, x, dy *float32, n int) {
	if haveAVX512 {
		reluGradientAVX512(dx, x, dy, n)
	} else {
		reluGradientAVX2(dx, x, dy, n)
	}
}

//go:noescape
func reluGradientAVX512(dx, x, dy *float32, n int)

//go:noescape
func reluGradientAVX2(dx, x, dy *float32, n int)

func geluVectors(dst, x *float32, n int) {
	if haveAVX512 {
		geluAVX512(dst, x, n)
	} else {
		geluAVX2(dst, x, n)
	}
}

//go:noescape
func geluAVX512(dst, x *float32, n int)

//go:noescape
func geluAVX2(dst, x *float32, n int)

func geluGradientVectors(dx, x, dy *float32, n int) {
	if haveAVX512 {
		geluGradientAVX512(dx, x, dy, n)
	} else {
		geluGradientAVX2(dx, x, dy, n)
	}
}

//go:noescape
func geluGradientAVX512(dx, x, dy *float32, n int)

//go:noescape
func geluGradientAVX2(dx, x, dy *float32, n int)

// adamWVectors sets lanes, as many as a vector has, to the bits of the largest magnitudes
// of p, m and v, and leaves the other lanes as they are.
func adamWVectors(rule *AdamW, p, m, v, grad *float32, n int, lanes *[3][16]uint32) {
	if haveAVX512 {
		adamWAVX512(rule, p, m, v, grad, n, lanes)
	} else {
		adamWAVX2(rule, p, m, v, grad, n, lanes)
	}
}

//go:noescape
func adamWAVX512(rule *AdamW, p, m, v, grad *float32, n int, lanes *[3][16]uint32)

//go:noescape
func adamWAVX2(rule *AdamW, p, m, v, grad *float32, n int, lanes *[3][16]uint32)

func maxRowsVectors(top, scores []float32, ld int, visible []int) {
	if haveAVX512 {
		maxRowsAVX512(&top[0], &scores[0], ld, len(visible), &visible[0])
	} else {
		maxRowsAVX2(&top[0], &scores[0], ld, len(visible), &visible[0])
	}
}

//go:noescape
func maxRowsAVX512(top, scores *float32, ld, rows int, visible *int)

//go:noescape
func maxRowsAVX2(top, scores *float32, ld, rows int, visible *int)

func weighRowsVectors(scores []float32, ld, width int, visible []int, scale float32, largest, total []float32) {
	if haveAVX512 {
		weighRowsAVX512(&scores[0], ld, len(visible), width, &visible[0], scale, &largest[0], &total[0])
	} else {
		weighRowsAVX2(&scores[0], ld, len(visible), width, &visible[0], scale, &largest[0], &total[0])
	}
}

//go:noescape
func weighRowsAVX512(scores *float32, ld, rows, width int, visible *int, scale float32, largest, total *float32)

//go:noescape
func weighRowsAVX2(scores *float32, ld, rows, width int, visible *int, scale float32, largest, total *float32)

func scoreGradientRowsVectors(p, ds []float32, ld, width int, visible []int, scale2, scale float32, lse2, delta []float32) {
	if haveAVX512 {
		scoreGradientRowsAVX512(&p[0], &ds[0], ld, len(visible), width, &visible[0], scale2, scale, &lse2[0], &delta[0])
	} else {
		scoreGradientRowsAVX2(&p[0], &ds[0], ld, len(visible), width, &visible[0], scale2, scale, &lse2[0], &delta[0])
	}
}

//go:noescape
func scoreGradientRowsAVX512(p, ds *float32, ld, rows, width int, visible *int, scale2, scale float32, lse2, delta *float32)

//go:noescape
func scoreGradientRowsAVX2(p, ds *float32, ld, rows, width int, visible *int, scale2, scale float32, lse2, delta *float32)

// The transposes take multiples of sixteen rows and columns. transpose8AVX2 and
// transpose16AVX2 take at most TransposeRows rows, transpose8AVX512 multiples of it.

func transpose8Vectors(dst *uint8, ld int, src *uint8, step, rows, cols int, stream bool) {
	stream = stream && (uintptr(unsafe.Pointer(dst))|uintptr(ld))%TransposeRows == 0
	done := 0
	if haveAVX512 && rows >= TransposeRows {
		done = rows - rows%TransposeRows
		transpose8AVX512(dst, ld, src, step, done, cols, stream)
	}
	var stage [TransposeRows * 16]uint8
	for n := 0; done < rows; done += n {
		n = min(rows-done, TransposeRows)
		to, from := (*uint8)(unsafe.Add(unsafe.Pointer(dst), done)), (*uint8)(unsafe.Add(unsafe.Pointer(src), done*step))
		transpose8AVX2(to, ld, from, step, n, cols, &stage, stream && n == TransposeRows)
	}
}

//go:noescape
func transpose8AVX512(dst *uint8, ld int, src *uint8, step, rows, cols int, stream bool)

// transpose8AVX2 can stream only columns of whole cache lines.
//
//go:noescape
func transpose8AVX2(dst *uint8, ld int, src *uint8, step, rows, cols int, stage *[TransposeRows * 16]uint8, stream bool)

func transpose16Vectors(dst *uint16, ld int, src *uint16, step, rows, cols int) {
	var stage [TransposeRows * 16]uint8
	_ = stage[rows*16-1]
	transpose16AVX2(dst, ld, src, step, rows, cols, &stage)
}

//go:noescape
func transpose16AVX2(dst *uint16, ld int, src *uint16, step, rows, cols int, stage *[TransposeRows * 16]uint8)
