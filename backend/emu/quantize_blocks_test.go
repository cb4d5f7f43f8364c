package emu

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// blockShapes are common granularities and odd ones: wider than what is loaded at a
// time, or with an odd number of rows.
var blockShapes = []backend.ScaleBlock{
	backend.PerRow, backend.PerColumn, backend.Block1x128,
	{Rows: 128, Cols: 1},
	backend.Block128x128,
	backend.Block1x32,
	{Rows: 32, Cols: 1},
	{Rows: 0, Cols: 7},
	{Rows: 3, Cols: 2500},
	{Rows: 5, Cols: 0},
}

// Every block's scale and every code equal those of the scalar functions, for shapes
// that are split by rows and by columns.
func TestQuantizePerBlock(t *testing.T) {
	for _, block := range blockShapes {
		for i, shape := range oddShapes {
			for _, transpose := range []bool{false, true} {
				rows, cols := shape[0], shape[1]
				tr := newTrial(t)
				values := tr.noise(rows * cols)
				for j := range values {
					values[j] *= float32(math.Exp2(float64(j/cols%13 - j%cols/16%19)))
				}
				outRows, outCols := rows, cols
				if transpose {
					outRows, outCols = cols, rows
				}
				out := tr.tensor("out", fp8.E4M3, nil, outRows, outCols)
				scaleRows, scaleCols := block.ScaleShape(outRows, outCols)
				c := backend.Cast{Out: out, Transpose: transpose}
				if mx := i%2 == 0; mx {
					c.ScaleInv, c.Rule = tr.tensor("inv", fp8.E8M0, nil, scaleRows, scaleCols), fp8.RoundUp
				} else {
					c.ScaleInv, c.Limit = tr.tensor("inv", fp8.F32, nil, scaleRows, scaleCols), 448
				}
				out.Scale, out.Block = c.ScaleInv, block
				tr.program.Add(&backend.Quantize{X: tr.tensor("x", fp8.F32, values, rows, cols), Out: []backend.Cast{c}})
				d := tr.run()

				tile := func(i, size, extent int) int {
					if size == 0 {
						size = extent
					}
					return i / size
				}
				index := func(j int) (at, scale int) { // of element j in out and in its scales
					r, c := j/cols, j%cols
					if transpose {
						r, c = c, r
					}
					return r*outCols + c, tile(r, block.Rows, outRows)*scaleCols + tile(c, block.Cols, outCols)
				}
				amax := make([]float32, scaleRows*scaleCols)
				for j, v := range values {
					_, s := index(j)
					amax[s] = fp8.MaxAmax(amax[s], v)
				}
				inv, codes := d.values(c.ScaleInv), d.memory[out]
				wrong := 0
				for j, v := range values {
					at, s := index(j)
					scale, _ := fp8.ScaleFor(amax[s], 448, false)
					want := float64(1 / scale)
					if c.Limit == 0 {
						want = math.Exp2(float64(fp8.MXScale(amax[s], fp8.E4M3, fp8.RoundUp)) - 127)
						scale = float32(1 / want)
					}
					if inv[s] != want || uint32(codes[at]) != fp8.E4M3.Nearest(v*scale, fp8.Saturate) {
						wrong++
					}
				}
				require.Zero(t, wrong, "%v, blocks of %s, transposed %v", shape, block, transpose)
			}
		}
	}
}
