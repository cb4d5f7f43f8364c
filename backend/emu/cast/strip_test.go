package cast

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// newMatrix returns a matrix of zeros with ld elements from row to row.
func newMatrix(d fp8.DType, rows, cols, ld int) memory.Matrix {
	return memory.New(d, rows, cols, ld, pool.Bytes(int64(rows*ld*d.Size())))
}

// Rows may be stored in any order and in pieces.
func TestStrips(t *testing.T) {
	const rows, cols = 150, 40
	p := pool.New(2)
	defer p.Close()
	for _, d := range []fp8.DType{fp8.F32, fp8.BF16, fp8.F16, fp8.E4M3} {
		wide := newMatrix(d, cols, rows+9, rows+9)
		view, amax := wide.Sub(0, 4), []float32{0}
		view.Cols = rows
		out := NewOutput(p, []Cast{{Out: view, Transpose: true, Amax: amax}})
		require.Empty(t, out.Direct())
		value := func(row, col int) float32 { return d.Float32(d.Nearest(float32(row+col%13), fp8.Saturate)) }
		store := func(worker, row, col, n int) {
			x := make([]float32, n)
			for i := range x {
				x[i] = value(row, col+i)
			}
			out.Store(worker, row, col, x)
		}
		Storing(func() {
			for row := range 100 { // more than a strip
				store(0, row, 0, 24)
			}
			for row := 99; row >= 0; row-- { // in descending order
				store(p.Size()-1, row, 24, 16)
			}
			for row := 100; row < rows; row++ { // by alternating workers
				store(row%p.Size(), row, 0, 10)
				store(row%p.Size(), row, 10, 30)
			}
		}, out)()
		for col := range cols {
			for i, v := range wide.Row(make([]float32, wide.Cols), col) {
				if row := i - 4; row < 0 || row >= rows {
					require.Zero(t, v, "%s: written beyond the view", d)
				} else {
					require.Equal(t, value(row, col), v, "%s: column %d, row %d", d, col, row)
				}
			}
		}
		require.Equal(t, value(rows-1, 12), amax[0])
	}
}

// A large result is stored past the caches, in either orientation and in both.
func TestResultsStream(t *testing.T) {
	const rows, cols = 2048, streamBytes / 2048
	r := rand.New(rand.NewPCG(1, 2))
	noise, codes := make([]float32, 251), make([]uint8, 251)
	for i := range noise {
		noise[i] = fp8.BF16.Float32(fp8.BF16.Nearest(float32(r.NormFloat64()), fp8.NonSaturating)) // exact in both formats
		codes[i] = uint8(fp8.E4M3.Nearest(noise[i], fp8.Saturate))
	}
	p := pool.New(2)
	defer p.Close()
	for _, d := range []fp8.DType{fp8.F32, fp8.BF16} {
		x := newMatrix(d, rows, cols, cols)
		for i := range rows * cols {
			if d == fp8.F32 {
				x.F32[i] = noise[i%len(noise)]
			} else {
				x.U16[i] = uint16(fp8.BF16.Nearest(noise[i%len(noise)], fp8.NonSaturating))
			}
		}
		one, both := newMatrix(fp8.E4M3, rows, cols, cols), newMatrix(fp8.E4M3, rows, cols, cols)
		transposed := newMatrix(fp8.E4M3, cols, rows, rows)
		require.True(t, Streams(&one))
		Quantize(p, x, memory.BlockScales{}, nil, nil, []Cast{{Out: one}})()
		Quantize(p, x, memory.BlockScales{}, nil, nil, []Cast{{Out: both}, {Out: transposed, Transpose: true}})()
		wrong := 0
		for i := range rows * cols {
			want := codes[i%len(codes)]
			if one.U8[i] != want || both.U8[i] != want || transposed.U8[i%cols*rows+i/cols] != want {
				wrong++
			}
		}
		require.Zero(t, wrong, d)
	}
}
