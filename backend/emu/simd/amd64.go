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

// exp2Vectors holds the last four of exp2Constants. Each fills an AVX2 vector; AVX-512
// kernels broadcast it.
var exp2Vectors [8 * 4]float32

// signMasks are the masks of a float32's magnitude and of its sign.
//
//lint:ignore U1000 used in assembly
var signMasks = [2]uint32{1<<31 - 1, 1 << 31}

// firstLanes holds the mask of the first n of sixteen lanes at index 16−n.
var firstLanes [32]int32

func init() {
	for i := range exp2Vectors {
		exp2Vectors[i] = exp2Constants[len(exp2Constants)-4+i/8]
	}
	for i := range 16 {
		firstLanes[i] = -1
	}
}

// Pause runs n PAUSE instructions, 3 to 45 ns each. Meanwhile the core's other thread
// gets its execution units, and leaving a spin-wait loop does not flush the pipeline
// (Intel's optimization manual, on spin-wait loops).
func Pause(n int)

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

func weighRowsBF16Vectors(scores []float32, ld, width int, visible []int, scale float32, largest, total []float32) bool {
	if haveAVX512 {
		weighRowsBF16AVX512(&scores[0], ld, len(visible), width, &visible[0], scale, &largest[0], &total[0])
	}
	return haveAVX512
}

//go:noescape
func weighRowsBF16AVX512(scores *float32, ld, rows, width int, visible *int, scale float32, largest, total *float32)

func scoreGradientRowsBF16Vectors(p, ds []float32, ld, width int, visible []int, scale2, scale float32, lse2, delta []float32) bool {
	if haveAVX512 {
		scoreGradientRowsBF16AVX512(&p[0], &ds[0], ld, len(visible), width, &visible[0], scale2, scale, &lse2[0], &delta[0])
	}
	return haveAVX512
}

//go:noescape
func scoreGradientRowsBF16AVX512(p, ds *float32, ld, rows, width int, visible *int, scale2, scale float32, lse2, delta *float32)

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
