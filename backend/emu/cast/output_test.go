package cast

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// StoreRows gives the bits of Store row by row, in any order of casts, and their amax.
func TestStoreRows(t *testing.T) {
	const rows, cols, ld = 70, 50, 67
	p := pool.New(1)
	defer p.Close()
	r := rand.New(rand.NewPCG(51, 52))
	x := make([]float32, rows*ld)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	e8m5, err := fp8.ParseDType("e8m5")
	require.NoError(t, err)
	for _, formats := range [][]Cast{
		{{Out: memory.Matrix{DType: fp8.BF16}}},
		{{Out: memory.Matrix{DType: fp8.BF16}, Transpose: true}},
		{{Out: memory.Matrix{DType: fp8.BF16}}, {Out: memory.Matrix{DType: fp8.BF16}}},
		{{Out: memory.Matrix{DType: fp8.BF16}}, {Out: memory.Matrix{DType: fp8.E4M3}}, {Out: memory.Matrix{DType: fp8.E4M3}, Transpose: true}},
		{{Out: memory.Matrix{DType: fp8.BF16}, Transpose: true}, {Out: memory.Matrix{DType: fp8.BF16}}, {Out: memory.Matrix{DType: fp8.F32}}},
		{{Out: memory.Matrix{DType: fp8.BF16}}, {Out: memory.Matrix{DType: fp8.BF16}, Rounding: fp8.Stochastic, Stream: 7}},
		{{Out: memory.Matrix{DType: fp8.BF16}, Rounding: fp8.Stochastic, Stream: 7}, {Out: memory.Matrix{DType: fp8.BF16}}},
		{{Out: memory.Matrix{DType: fp8.BF16}, Precision: e8m5}, {Out: memory.Matrix{DType: fp8.F16}}},
	} {
		var stored [2][]memory.Matrix
		var amax [2][]float32
		for i := range 2 {
			var casts []Cast
			for _, c := range formats {
				m, n := rows, cols
				if c.Transpose {
					m, n = n, m
				}
				c.Out, c.Amax = newMatrix(c.Out.DType, m, n, n+2), []float32{0}
				casts, stored[i], amax[i] = append(casts, c), append(stored[i], c.Out), append(amax[i], 0)
			}
			out := NewOutput(p, casts)
			Storing(func() {
				for _, part := range [][2]int{{0, 18}, {18, 32}} { // columns
					for row := 0; row < rows; row += 35 {
						if from := x[row*ld+part[0]:]; i == 0 {
							out.StoreRows(0, row, part[0], from, ld, 35, part[1])
						} else {
							for k := range 35 {
								out.Store(0, row+k, part[0], from[k*ld:][:part[1]])
							}
						}
					}
				}
			}, out)()
			for j, c := range casts {
				amax[i][j] = c.Amax[0]
			}
		}
		what := fmt.Sprint(len(formats), " casts, the first to ", formats[0].Out.DType)
		require.Equal(t, stored[1], stored[0], what)
		require.Equal(t, amax[1], amax[0], what)
		require.Greater(t, amax[0][0], float32(2), what)
	}
}
