package inspect

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
)

// Values of block-scaled and of expanded moments: two rows of 130 elements, in blocks of 128.
func TestScalesOfBlocks(t *testing.T) {
	plain := scales{inv: []float32{1, 2, 3, 4}, cols: 130, block: 128}
	require.Equal(t, 3.*2, plain.value(129, 3))
	require.Equal(t, 3.*3, plain.value(130, 3))
	expanded := scales{cols: 130, block: 128, expanded: true}
	for i := range 4 {
		expanded.inv = append(expanded.inv, float32(i+1), 2, 5)
	}
	for i, block := range map[int64]float32{127: 1, 129: 2, 257: 3, 259: 4} {
		x := []float32{-3}
		fp8.Expansion{block, 2, 5}.Expand(x)
		require.Equal(t, float64(x[0]), expanded.value(i, -3))
		require.Negative(t, x[0])
	}
	require.Equal(t, 7., scales{}.value(3, 7))
}
