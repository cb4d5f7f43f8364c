package simd

import (
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func TestTranspose(t *testing.T) {
	eachInstructionSet(t, func(t *testing.T) {
		for _, rows := range []int{1, 15, 16, 33, 64, 128, 211} {
			for _, cols := range []int{1, 7, 8, 16, 31, 48, 64, 200, 257} {
				for _, start := range []int{0, 3} {
					checkTranspose(t, rows, cols, start, rows+5, func(dst []uint8, ld int, src []uint8, step, rows, cols int) {
						Transpose8(dst, ld, src, step, rows, cols, false)
					})
					if rows > TransposeRows {
						continue
					}
					checkTranspose(t, rows, cols, start, rows+5, Transpose16)
					checkTranspose(t, rows, cols, start, rows+5, Transpose32)
				}
			}
		}
	})
}

// TestTranspose8Streams covers results on and off cache-line boundaries, with enough rows
// to stream and with fewer.
func TestTranspose8Streams(t *testing.T) {
	stream := func(dst []uint8, ld int, src []uint8, step, rows, cols int) {
		line := -int(uintptr(unsafe.Pointer(&dst[0]))) & (TransposeRows - 1)
		for _, at := range []int{line, line + 16} {
			for i := range dst {
				dst[i] = 0xa5
			}
			whole := slices.Clone(dst)
			Transpose8(dst[at:], ld, src, step, rows, cols, true)
			Transpose8(whole[at:], ld, src, step, rows, cols, false)
			require.True(t, slices.Equal(whole, dst), "%d × %d, %d apart, %d from a line", rows, cols, ld, at-line)
		}
		clear(dst)
		Transpose8(dst, ld, src, step, rows, cols, true)
	}
	eachInstructionSet(t, func(t *testing.T) {
		for _, rows := range []int{16, 48, 64, 128, 192} {
			for _, ld := range []int{192, 256, 208} {
				checkTranspose(t, rows, 48, 0, ld, stream)
			}
		}
	})
}

// checkTranspose transposes part of a matrix into part of another one, with rows ld apart.
// Both begin start elements into their memory.
func checkTranspose[E uint8 | uint16 | float32](t *testing.T, rows, cols, start, ld int, transpose func(dst []E, ld int, src []E, step, rows, cols int)) {
	step := cols + start
	src := make([]E, start+(rows-1)*step+cols)
	for i := range src {
		src[i] = E(i*7 + i>>8*31)
	}
	want := make([]E, start+cols*ld+160)
	got := slices.Clone(want)
	for i := range rows {
		for j := range cols {
			want[start+j*ld+i] = src[start+i*step+j]
		}
	}
	transpose(got[start:], ld, src[start:], step, rows, cols)
	require.True(t, slices.Equal(want, got), "%d × %d", rows, cols)
}
