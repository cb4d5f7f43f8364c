//go:build linux || darwin

package gemm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend/emu/pool"
	"octet/fp8"
)

// No kernel reads or writes beyond its operands, also with partial tiles.
func TestAMXStaysInside(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	for _, atEnd := range []bool{false, true} {
		for _, d := range []fp8.DType{fp8.BF16, fp8.E4M3} {
			for _, shape := range [][3]int{{1, 1, 1}, {16, 16, 32}, {17, 33, 31}, {32, 31, 64}, {33, 64, 65}} {
				m, n, k := shape[0], shape[1], shape[2]
				for trans := range 4 {
					transA, transB := trans&1 > 0, trans&2 > 0
					a, b := fencedMatrix(t, d, m, k, atEnd), fencedMatrix(t, d, k, n, atEnd)
					if transA {
						a.Rows, a.Cols, a.LD = k, m, m
					}
					if transB {
						b.Rows, b.Cols, b.LD = n, k, k
					}
					out := fencedMatrix(t, d, m, n, atEnd)
					for _, kernel := range amxKernels() {
						g, err := newAMXGemmWith(kernel, p, a, transA, b, transB, out)
						require.NoError(t, err)
						g.Run(Epilogue{})
					}
				}
			}
		}
	}
}
