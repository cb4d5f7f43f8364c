package gemm

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// integerDot returns the exact dot product of integers, rounded to float32.
func integerDot(a, b []float32) float32 {
	sum := int64(0)
	for l := range a {
		sum += int64(a[l]) * int64(b[l])
	}
	return float32(sum)
}

// Sums of integers are exact: of large ones, which FP32 rounds, over all sizes of blocks of k.
func TestIntegerGemm(t *testing.T) {
	r := rand.New(rand.NewPCG(41, 42))
	for _, shape := range [][3]int{{1, 1, 1}, {3, 40, 1023}, {50, 35, 1024}, {7, 33, 1025}, {20, 50, 2049}, {5, 17, 5000}} {
		for _, formats := range [][2]fp8.DType{{fp8.INT8, fp8.INT8}, {fp8.INT4, fp8.INT4}, {fp8.INT8, fp8.INT4}, {fp8.INT4.InBytes(), fp8.INT8}} {
			for trans := range 4 {
				c := gemmCase{
					m: shape[0], n: shape[1], k: shape[2], a: formats[0], b: formats[1], out: fp8.F32,
					transA: trans&1 > 0, transB: trans&2 > 0, alpha: 1.5,
				}
				a, b, out, e := c.operands(r)
				for i := range a.Rows * a.LD {
					setCode(a, i, c.a.Nearest(127-100*r.Float32()*r.Float32(), fp8.Saturate)) // no zero mean
				}
				for i := range b.Rows * b.LD {
					setCode(b, i, c.b.Nearest(127-200*r.Float32()*r.Float32(), fp8.Saturate))
				}
				rows, cols := rowsOf(a, c.transA, false), rowsOf(b, c.transB, true)
				for _, kernel := range testedKernels() {
					for workers := 1; workers <= 2; workers++ {
						p := pool.New(workers)
						g, err := NewWith(kernel, p, a, c.transA, b, c.transB, out)
						require.NoError(t, err)
						g.Run(e)
						p.Close()
						for i := range c.m {
							for j := range c.n {
								require.Equal(t, integerDot(rows[i], cols[j])*c.alpha, out.F32[i*out.LD+j], "%s: %s: [%d,%d]", kernel.Name, c, i, j)
							}
						}
					}
				}
			}
		}
	}
}

// The largest K has no overflow; a larger one is refused.
func TestIntegerGemmLargestK(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	const k = backend.MaxIntegerK
	x, out := newMatrix(fp8.INT8, 1, k+1, k+1), newMatrix(fp8.F32, 1, 1, 1)
	for i := range x.U8 {
		x.U8[i] = 127
	}
	x.Cols = k
	for _, kernel := range testedKernels() {
		g, err := NewWith(kernel, p, x, false, x, true, out)
		require.NoError(t, err)
		g.Run(Epilogue{})
		require.Equal(t, float32(k*127*127), out.F32[0], kernel.Name)
	}
	x.Cols++
	_, err := New(p, x, false, x, true, out)
	require.ErrorContains(t, err, "K is 133145: sums of products of integers fit 32 bits up to K = 133144")
	_, err = New(p, x, false, newMatrix(fp8.E4M3, 1, k+1, k+1), true, out)
	require.ErrorContains(t, err, "A is int8 and B is e4m3: an integer format multiplies only integer formats")
}

func TestIntegerGemmAllocatesNothing(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	g, err := New(p, newMatrix(fp8.INT8, 20, 3000, 3000), false, newMatrix(fp8.INT8, 40, 3000, 3000), true, newMatrix(fp8.BF16, 20, 40, 40))
	require.NoError(t, err)
	require.Zero(t, testing.AllocsPerRun(5, func() { g.Run(Epilogue{}) }))
}
