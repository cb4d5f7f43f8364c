package gemm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend/arith"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// With Used the products of rows of zeros are left out, and no bit changes: in every kernel, format
// and orientation, for block scales and device models, with an old output and with a residual.
func TestUsed(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 22))
	h100, err := arith.Lookup("h100")
	require.NoError(t, err)
	p := pool.New(2)
	defer p.Close()
	const rows, cols, n = 83, 1100, 40 // with more than one block along cols
	scales := randomScales(r, 9*rows)
	for _, kernel := range testedKernels() {
		makers := map[string]func(*pool.Pool, memory.Matrix, bool, memory.Matrix, bool, memory.Matrix) (*GEMM, error){
			"plain": func(p *pool.Pool, a memory.Matrix, ta bool, b memory.Matrix, tb bool, out memory.Matrix) (*GEMM, error) {
				return NewWith(kernel, p, a, ta, b, tb, out)
			},
		}
		makers["blocks"] = func(p *pool.Pool, a memory.Matrix, ta bool, b memory.Matrix, tb bool, out memory.Matrix) (*GEMM, error) {
			g, err := NewWith(kernel, p, a, ta, b, tb, out)
			if err == nil {
				err = g.ScaleBlocks(memory.BlockScales{Cols: 128, Rows: 1, Across: 9, DType: fp8.F32, F32: scales}, memory.BlockScales{}, 0)
			}
			return g, err
		}
		if kernel == testedKernels()[0] || kernel.Name == Kernels()[0].Name {
			makers["h100"] = NewFused(*h100.SumOf(fp8.Encoding{DType: fp8.E4M3}, fp8.Encoding{DType: fp8.E4M3}))
		}
		for name, newGEMM := range makers {
			for _, d := range []fp8.DType{fp8.F32, fp8.BF16, fp8.E4M3, fp8.INT8} {
				if name != "plain" && d != fp8.E4M3 {
					continue
				}
				for _, transA := range []bool{false, true} {
					for _, used := range []int{0, 1, 30, 1000} {
						a, x, y := randomMatrix(r, d, rows, cols, cols), randomMatrix(r, d, rows, n, n), randomMatrix(r, d, n, cols, cols)
						for i := min(used, rows) * cols; i < rows*cols; i++ {
							setCode(a, i, 0)
						}
						b, transB, height := y, true, rows // a·yᵀ
						if transA {
							b, transB, height = x, false, cols // aᵀ·x
						}
						var results [2]memory.Matrix
						residual := randomMatrix(r, fp8.F32, height, n, n)
						for i := range results {
							results[i] = newMatrix(fp8.F32, height, n, n)
							g, err := newGEMM(p, a, transA, b, transB, results[i])
							require.NoError(t, err)
							e := Epilogue{Residual: residual}
							if i == 1 {
								e.Used = []int32{int32(used)}
							}
							g.Run(e)
						}
						require.Equal(t, results[0].F32[:height*n], results[1].F32[:height*n], "%s %s %s %v %d", kernel.Name, name, d, transA, used)
					}
				}
			}
		}
	}
}

// Rows beyond Used are not read: NaN there does not reach the output.
func TestUsedSkips(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	r := rand.New(rand.NewPCG(1, 2))
	for _, transA := range []bool{false, true} {
		a, out := randomMatrix(r, fp8.F32, 300, 300, 300), newMatrix(fp8.F32, 300, 300, 300)
		for i := 150 * 300; i < len(a.F32); i++ {
			a.F32[i] = float32(math.NaN())
		}
		g, err := New(p, a, transA, randomMatrix(r, fp8.F32, 300, 300, 300), false, out)
		require.NoError(t, err)
		g.Run(Epilogue{Used: []int32{150}})
		for _, row := range []int{0, 149, 200, 299} { // a tile may have rows of both kinds
			require.False(t, math.IsNaN(float64(out.F32[row*300])), "%v %d", transA, row)
		}
	}
}

// BenchmarkUsed compares the GEMMs of an expert with 640 rows, of which 512 have tokens, with and
// without Used, in turns: the shortest time over the shortest time.
func BenchmarkUsed(b *testing.B) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, d := range []fp8.DType{fp8.E4M3, fp8.BF16} {
		for _, s := range []struct {
			name           string
			cols, n        int
			transA, transB bool
		}{{"fprop", 128, 352, false, true}, {"dgrad", 352, 128, false, false}, {"wgrad", 352, 128, true, false}} {
			for _, used := range []int32{512, 320} {
				b.Run(fmt.Sprintf("%s/%s/%d", d, s.name, used), func(b *testing.B) {
					p := pool.New(2)
					defer p.Close()
					c := gemmCase{m: 640, n: s.n, k: s.cols, a: d, b: d, out: fp8.F32, transA: s.transA, transB: s.transB, alpha: 1}
					if s.transA {
						c.m, c.k = s.cols, 640
					}
					x, y, out, e := c.operands(r)
					e.Amax, e.Residual = nil, memory.Matrix{}
					g, err := New(p, x, s.transA, y, s.transB, out)
					require.NoError(b, err)
					shortest := [2]float64{math.Inf(1), math.Inf(1)}
					for b.Loop() {
						for i, u := range [][]int32{nil, {used}} {
							e.Used = u
							start := b.Elapsed()
							g.Run(e)
							shortest[i] = min(shortest[i], (b.Elapsed() - start).Seconds())
						}
					}
					b.ReportMetric(shortest[1]/shortest[0], "of-all-rows")
				})
			}
		}
	}
}
