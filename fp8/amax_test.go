package fp8

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAmax(t *testing.T) {
	require.Zero(t, Amax(nil))
	require.Equal(t, float32(3), Amax([]float32{1, -3, 2}))
	require.Equal(t, inf, Amax([]float32{1, -inf, 2}))
	require.Equal(t, float32(0x1p-149), Amax([]float32{0, -0x1p-149}))
	for _, x := range [][]float32{{inf, nan, 1}, {nan, inf}, {1, -nan}} {
		require.True(t, math.IsNaN(float64(Amax(x))), "%v", x)
	}
}

// TestAmaxAtEveryIndex puts the largest magnitude at every index, and a larger
// one after the end of the slice.
func TestAmaxAtEveryIndex(t *testing.T) {
	for n := range 70 {
		x := make([]float32, n+1)
		x[n] = 9
		for i := range n {
			x[i] = -3
			require.Equal(t, float32(3), Amax(x[:n]), "element %d of %d", i, n)
			x[i] = 1
		}
	}
}

func TestMaxAmax(t *testing.T) {
	rising := []float32{0, 0x1p-149, 1, math.MaxFloat32, inf, nan}
	for i, a := range rising {
		for j, b := range rising {
			want := math.Float32bits(rising[max(i, j)])
			require.Equal(t, want, math.Float32bits(MaxAmax(a, b)))
			require.Equal(t, want, math.Float32bits(MaxAmax(-a, b)))
		}
	}
}
