package cast

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
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
	p := pool.New(2)
	defer p.Close()
	r := rand.New(rand.NewPCG(3, 4))
	for _, block := range blockShapes {
		for i, shape := range [][2]int{{1, 1}, {1, 17}, {3, 17000}, {700, 33}, {50, 352}, {130, 1000}} {
			for _, transpose := range []bool{false, true} {
				rows, cols := shape[0], shape[1]
				x := newMatrix(fp8.F32, rows, cols, cols)
				for j := range x.F32 {
					x.F32[j] = float32(r.NormFloat64() * math.Exp2(float64(j/cols%13-j%cols/16%19)))
				}
				outRows, outCols := rows, cols
				if transpose {
					outRows, outCols = cols, rows
				}
				scaleRows, scaleCols := block.ScaleShape(outRows, outCols)
				inv := memory.BlockScales{Rows: block.Rows, Cols: block.Cols, Across: scaleCols}
				c := Cast{Out: newMatrix(fp8.E4M3, outRows, outCols, outCols), Transpose: transpose}
				mx := i%2 == 0
				if mx {
					inv.DType, inv.Codes, c.Rule = fp8.E8M0, make([]uint8, scaleRows*scaleCols), fp8.RoundUp
				} else {
					inv.DType, inv.F32, c.Limit = fp8.F32, make([]float32, scaleRows*scaleCols), 448
				}
				c.Blocks = inv
				Quantize(p, x, memory.BlockScales{}, nil, nil, []Cast{c})()

				stored := func(j int) (row, col int) { // of element j
					if transpose {
						return j % cols, j / cols
					}
					return j / cols, j % cols
				}
				amax := inv
				amax.Codes, amax.F32 = nil, make([]float32, scaleRows*scaleCols)
				for j, v := range x.F32 {
					top := &amax.F32[amax.Index(stored(j))]
					*top = fp8.MaxAmax(*top, v)
				}
				wrong := 0
				for j, v := range x.F32 {
					row, col := stored(j)
					scale, _ := fp8.ScaleFor(amax.Element(row, col), 448, false)
					want := 1 / scale
					if mx {
						want = float32(math.Exp2(float64(fp8.MXScale(amax.Element(row, col), fp8.E4M3, fp8.RoundUp)) - 127))
						scale = 1 / want
					}
					if inv.Element(row, col) != want || uint32(c.Out.U8[row*outCols+col]) != fp8.E4M3.Nearest(v*scale, fp8.Saturate) {
						wrong++
					}
				}
				require.Zero(t, wrong, "%v, blocks of %s, transposed %v", shape, block, transpose)
			}
		}
	}
}
