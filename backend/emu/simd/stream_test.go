package simd

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStream covers every offset in a cache line, and whole lines with a head and a tail.
func TestStream(t *testing.T) {
	src := make([]byte, 400)
	for i := range src {
		src[i] = byte(i*7 + 1)
	}
	eachInstructionSet(t, func(t *testing.T) {
		for at := range lineBytes {
			for _, n := range []int{0, 1, 63, 64, 65, 127, 128, 300} {
				want, got := make([]byte, 500), make([]byte, 500)
				copy(want[at:], src[5:5+n])
				Stream(got[at:], src[5:5+n])
				Fence()
				require.True(t, slices.Equal(want, got), "%d bytes at offset %d", n, at)
			}
		}
	})
}
