package optimizer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

func TestSumSquares(t *testing.T) {
	a, wide, c := noise(5000), noise(70), []float32{1e-3, 1e4, 1e-3}
	list := []memory.Matrix{
		{DType: fp8.F32, Rows: 50, Cols: 100, LD: 100, F32: a},
		{DType: fp8.F32, Rows: 7, Cols: 8, LD: 10, F32: wide[1:]},
		{DType: fp8.F32, Rows: 1, Cols: 3, LD: 3, F32: c},
	}
	var want float64
	for _, m := range list {
		for _, v := range values(m) {
			want += float64(v) * float64(v)
		}
	}
	out := make([]float32, 1)
	for threads := 1; threads <= 3; threads++ {
		p := pool.New(threads)
		SumSquares(p, list, make([]*Extents, len(list)), out)()
		require.Equal(t, []float32{float32(want)}, out)
		p.Close()
	}
}

// Extents number the elements of a matrix without gaps; of another one they stay unknown.
func TestSumSquaresOfAViewHasNoExtents(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	view := memory.Matrix{DType: fp8.F32, Rows: 4, Cols: 256, LD: 300, F32: make([]float32, 4*300)}
	e := &Extents{max: make([]float32, 4)}
	out := make([]float32, 1)
	SumSquares(p, []memory.Matrix{view}, []*Extents{e}, out)()
	require.False(t, e.known)
	view.LD, view.F32 = 256, view.F32[:4*256]
	view.F32[3*256+1] = 7
	SumSquares(p, []memory.Matrix{view}, []*Extents{e}, out)()
	require.True(t, e.known)
	require.Equal(t, []float32{0, 0, 0, 7}, e.max)
	require.Equal(t, float32(49), out[0])
}
