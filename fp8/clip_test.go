package fp8

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What is at the limit still rounds to the largest value; in a format that had
// one more number above it, what is beyond would round to that.
func TestClipLimit(t *testing.T) {
	for d, want := range map[DType]float32{E4M3: 448 + 16, E4M3IEEE: 240 + 8, E5M2: 57344 + 4096} {
		require.Equal(t, want, d.ClipLimit(), d)
	}
}
