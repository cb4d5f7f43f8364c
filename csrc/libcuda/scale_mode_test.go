package libcuda

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The number of scales includes cuBLASLt's padding.
func TestScales(t *testing.T) {
	const rows, k = 140, 608
	for mode, want := range map[ScaleMode]int{
		PerTensor: 1, PerRow: 140, Vec128: 5 * 140, Block128: 2 * 8,
		Vec32E8M0: 2 * 5 * 512, Vec16E4M3: 2 * 10 * 512,
	} {
		require.Equal(t, want, mode.Scales(rows, k), "%d", mode)
	}
}
