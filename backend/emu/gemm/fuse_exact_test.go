package gemm

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/arith"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// GEMMs of formats of fewer than eight bits have the bits of arith.Model.Dot, in every
// orientation and with every kernel of FP32, with blocks of zeros and scales of NaN, zero and
// any other value.
func TestFusedGemmOfScaledFormats(t *testing.T) {
	m, err := arith.Lookup("b200")
	require.NoError(t, err)
	r := rand.New(rand.NewPCG(9, 10))
	shapes := [][3]int{{2, 2, 16}, {3, 6, 48}, {6, 40, 290}, {34, 10, 1100}}
	if testing.Short() {
		shapes = shapes[:3]
	}
	for _, c := range []struct {
		a, b, scale fp8.DType
		along       int
	}{
		{fp8.E2M1, fp8.E2M1, fp8.E4M3, 16},
		{fp8.E2M1, fp8.E2M1, fp8.E8M0, 16},
		{fp8.E2M1, fp8.E2M1, fp8.E8M0, 32},
		{fp8.E2M1, fp8.E4M3, fp8.E8M0, 32},
		{fp8.E2M3, fp8.E3M2, fp8.E8M0, 32},
		{fp8.E5M2, fp8.E2M3, fp8.E8M0, 32},
	} {
		for _, shape := range shapes {
			for _, trans := range [][2]bool{{false, true}, {true, false}, {false, false}, {true, true}} {
				rows, cols, k := shape[0], shape[1], shape[2]
				a, scaleA, left := scaledOperand(r, c.a, c.scale, c.along, rows, k, trans[0])
				b, scaleB, right := scaledOperand(r, c.b, c.scale, c.along, cols, k, !trans[1])
				sum := m.SumOf(left[0].Encoding(), right[0].Encoding())
				want := make([]float32, 0, rows*cols)
				for i := range rows {
					for j := range cols {
						want = append(want, m.Dot(left[i], right[j], false))
					}
				}
				p := pool.New(1 + r.IntN(3))
				for i, kernel := range Kernels() {
					out := newMatrix(fp8.F32, rows, cols, cols)
					fuse := fuseKernels()[min(i, len(fuseKernels())-1)]
					g, err := newFusedGemmWith(fuse, kernel, *sum, p, a, trans[0], b, trans[1], out)
					require.NoError(t, err)
					require.NoError(t, g.ScaleBlocks(scaleA, scaleB, 0))
					require.True(t, g.scales.inside)
					g.Run(Epilogue{})
					sameBits(t, want, out.F32[:rows*cols], fmt.Sprint(c, shape, trans, kernel.Name))
				}
				p.Close()
			}
		}
	}
}

// scaledOperand returns a random matrix with block scales, stored transposed if trans, and
// its rows as operands of arith.
func scaledOperand(r *rand.Rand, d, scale fp8.DType, along, rows, k int, trans bool) (memory.Matrix, memory.BlockScales, []arith.Operand) {
	runs := pool.CeilDiv(k, along)
	block, across := backend.ScaleBlock{Rows: 1, Cols: along}, runs
	m := memory.Matrix{DType: d, Rows: rows, Cols: k}
	if trans {
		block, across = backend.ScaleBlock{Rows: along, Cols: 1}, rows
		m.Rows, m.Cols = k, rows
	}
	m.LD = m.Cols + m.Cols%2
	m.U8 = make([]uint8, d.Bytes(m.Rows*m.LD)+64)
	s := memory.BlockScales{Rows: block.Rows, Cols: block.Cols, Across: across, DType: scale, Codes: make([]uint8, rows*runs)}
	list := make([]arith.Operand, rows)
	for i := range list {
		o := &list[i]
		*o = arith.Operand{DType: d, Scale: scale, Along: along}
		for l := range k {
			code := uint8(r.Uint32()) & uint8(1<<d.Format().Bits-1)
			if v := d.Float32(uint32(code)); v-v != 0 || r.IntN(8) == 0 {
				code = 0
			}
			if l/along == i%3 && i > 1 { // a block of zeros
				code = uint8(1 << (d.Format().Bits - 1) & -(l & 1))
			}
			o.Codes = append(o.Codes, code)
			at := i*m.LD + l
			if trans {
				at = l*m.LD + i
			}
			setCode(m, at, uint32(code))
		}
		for run := range runs {
			code := uint8(r.IntN(0x7f))
			if scale == fp8.E8M0 {
				code = uint8(127 - 8 + r.IntN(16))
				if i == 0 { // subnormal sums
					code = uint8(30 + r.IntN(30))
				}
			}
			switch r.IntN(20 * runs) { // few, or NaN hides the others
			case 0:
				code = 0
			case 1:
				code = map[fp8.DType]uint8{fp8.E8M0: 0xff, fp8.E4M3: 0x7f}[scale]
			case 2, 3:
				code = uint8(r.Uint32())
			case 4, 5:
				code = uint8(r.IntN(20))
			}
			if run == i%3 && i > 1 {
				code = 0
			}
			o.Scales = append(o.Scales, code)
			at := i*runs + run
			if trans {
				at = run*rows + i
			}
			s.Codes[at] = code
		}
	}
	return m, s, list
}

// Fused sums of terms that FP32 kernels do not add up exactly are refused.
func TestFusedGemmRefusesInexactSums(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	p := pool.New(1)
	defer p.Close()
	a := codesOf(r, fp8.E4M3, 4, 64, false)
	_, err := NewFused(arith.Sum{Group: 64, Exact: 16, Bits: 35, Kept: 23})(p, a, false, a, true, newMatrix(fp8.F32, 4, 4, 4))
	require.EqualError(t, err, "gemm: fused sums of 64 products of e4m3 and e4m3: FP32 kernels sum up to 4 terms, each an exact sum of products of at most 24 bits")
}
