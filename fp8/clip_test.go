package fp8

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestClipLimit checks the limit against the maximum plus half a spacing.
func TestClipLimit(t *testing.T) {
	for d, want := range map[DType]float32{E4M3: 448 + 16, E4M3IEEE: 240 + 8, E5M2: 57344 + 4096} {
		require.Equal(t, want, d.ClipLimit(), d)
	}
}
