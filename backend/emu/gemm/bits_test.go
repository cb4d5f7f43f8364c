package gemm

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// finiteCodes returns a matrix of random finite codes. It uses no function of package
// math, so that every machine gets the same codes.
func finiteCodes(r *rand.Rand, d fp8.DType, rows, cols int) memory.Matrix {
	m := newMatrix(d, rows, cols, cols)
	for i := range rows * cols {
		switch d {
		case fp8.F32:
			m.F32[i] = r.Float32() - 0.5
		case fp8.BF16:
			m.U16[i] = uint16(r.Uint32())&0x80ff | 0x3f00
		default:
			m.U8[i] = uint8(r.Uint32()) & 0xbb // no NaN, no infinity
		}
	}
	return m
}

// FP8 GEMMs have the same bits with every kernel on every machine: all pairs of formats,
// all orientations, all steps of the epilogue, and several numbers of workers. The hash
// was recorded with the plain Go kernel.
func TestGemmBitsAreTheSameEverywhere(t *testing.T) {
	const want = uint64(0x57d548bda56ecfc3)
	formats := []fp8.DType{fp8.E4M3, fp8.E4M3IEEE, fp8.E5M2}
	pools := []*pool.Pool{pool.New(1), pool.New(2), pool.New(3)}
	defer func() {
		for _, p := range pools {
			p.Close()
		}
	}()
	r := rand.New(rand.NewPCG(31, 32))
	hash := fnv.New64a()
	scales := func(n int) []float32 {
		s := make([]float32, n)
		for i := range s {
			s[i] = r.Float32() + 0.5
		}
		return s
	}
	for _, shape := range [][3]int{{31, 67, 200}, {3, 40, 150}, {15, 33, 1100}} {
		m, n, k := shape[0], shape[1], shape[2]
		for _, da := range formats {
			for _, db := range formats {
				for trans := range 4 {
					transA, transB := trans&1 > 0, trans&2 > 0
					a, b := finiteCodes(r, da, m, k), finiteCodes(r, db, k, n)
					if transA {
						a.Rows, a.Cols, a.LD = k, m, m
					}
					if transB {
						b.Rows, b.Cols, b.LD = n, k, k
					}
					for _, out := range outFormats {
						a.Scale = []float32{r.Float32()}
						e := Epilogue{Amax: new(float32)}
						before := finiteCodes(r, out, m, n)
						switch out {
						case fp8.F32:
							e.Accumulate = true
						case fp8.BF16:
							e.RowScale, e.Residual = scales(m), finiteCodes(r, fp8.F32, m, n)
						default:
							e.ColScale, e.Residual, e.OutScale = scales(n), finiteCodes(r, fp8.BF16, m, n), []float32{0.01}
						}
						var first []uint32
						kernels := testedKernels()
						for i := range kernels { // plain Go is the last
							for _, p := range pools {
								to := cloneOf(before)
								*e.Amax = 0
								g, err := NewWith(kernels[len(kernels)-1-i], p, a, transA, b, transB, to)
								require.NoError(t, err)
								g.Run(e)
								got := allCodes(to)
								if first == nil {
									first = got
								}
								require.Equal(t, first, got, "%s, %d workers: %v %s(%t)·%s(%t)→%s",
									g.kernel.Name, p.Size(), shape, da, transA, db, transB, out)
							}
						}
						_, _ = fmt.Fprint(hash, first, *e.Amax)
					}
				}
			}
		}
	}
	require.Equal(t, want, hash.Sum64(), "%#x", hash.Sum64())
}
