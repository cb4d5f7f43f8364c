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

// TestAmaxAnywhere has the largest magnitude at every place, and a larger one
// behind the end.
func TestAmaxAnywhere(t *testing.T) {
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

func TestHistory(t *testing.T) {
	history := make([]float32, 3*2)
	PushHistory(history, []float32{1, 10})
	PushHistory(history, []float32{4, 20})
	PushHistory(history, []float32{3, 5})
	require.Equal(t, []float32{3, 5, 4, 20, 1, 10}, history)

	top := []float32{99, 99} // what was there does not count
	HistoryMax(top, history)
	require.Equal(t, []float32{4, 20}, top)

	PushHistory(history, []float32{2, inf})
	PushHistory(history, []float32{2, 0})
	HistoryMax(top, history)
	require.Equal(t, []float32{3, inf}, top)

	one := []float32{7}
	PushHistory(one, []float32{8}) // a window of one step
	HistoryMax(top[:1], one)
	require.Equal(t, []float32{8}, one)
	require.Equal(t, float32(8), top[0])

	PushHistory(nil, nil)
	HistoryMax(nil, nil)
	require.Panics(t, func() { HistoryMax(top, make([]float32, 3)) })
	require.Panics(t, func() { PushHistory(make([]float32, 1), top) })
}
