package fp8

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Rows are rounded as one by one, and nothing is written between them.
func TestEncodeBF16Rows(t *testing.T) {
	const rows, step, ld = 3, 90, 85
	src := make([]float32, rows*ld)
	for i := range src {
		src[i] = float32(i-100) * 1.2345
	}
	for n := range 81 {
		got := slices.Repeat([]uint16{0xa5a5}, rows*step)
		want := slices.Clone(got)
		for r := range rows {
			EncodeBF16(want[r*step:], src[r*ld:][:n])
		}
		EncodeBF16Rows(got, step, src, ld, rows, n)
		require.Equal(t, want, got, "%d elements", n)
	}
	EncodeBF16Rows(nil, step, nil, ld, 0, 5)
	require.Panics(t, func() { EncodeBF16Rows(make([]uint16, 2*step), step, src, ld, rows, 1) })
	require.Panics(t, func() { EncodeBF16Rows(make([]uint16, rows*step), step, src[:2*ld], ld, rows, 1) })
}
