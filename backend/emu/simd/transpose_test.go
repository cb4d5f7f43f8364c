package simd

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTranspose(t *testing.T) {
	eachInstructionSet(t, func(t *testing.T) {
		for _, rows := range []int{1, 15, 16, 33, 64} {
			for _, cols := range []int{1, 7, 8, 16, 31, 48, 64, 200, 257} {
				for _, start := range []int{0, 3} {
					for _, stream := range []bool{false, true} {
						checkTranspose(t, rows, cols, start, func(dst []uint8, ld int, src []uint8, step, rows, cols int) {
							Transpose8(dst, ld, src, step, rows, cols, stream)
						})
					}
					checkTranspose(t, rows, cols, start, Transpose16)
					checkTranspose(t, rows, cols, start, Transpose32)
				}
			}
		}
	})
}

// checkTranspose transposes a part of a matrix into a part of another one,
// both beginning start elements into their memory.
func checkTranspose[E uint8 | uint16 | float32](t *testing.T, rows, cols, start int, transpose func(dst []E, ld int, src []E, step, rows, cols int)) {
	step, ld := cols+start, rows+5
	src := make([]E, start+(rows-1)*step+cols)
	for i := range src {
		src[i] = E(i*7 + i>>8*31)
	}
	want := make([]E, start+cols*ld+40)
	got := slices.Clone(want)
	for i := range rows {
		for j := range cols {
			want[start+j*ld+i] = src[start+i*step+j]
		}
	}
	transpose(got[start:], ld, src[start:], step, rows, cols)
	require.True(t, slices.Equal(want, got), "%d × %d", rows, cols)
}
