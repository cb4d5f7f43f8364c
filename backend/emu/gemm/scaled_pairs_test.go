package gemm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// Words times words: of any bits as in Go, and exact where products are BF16.
func TestScalePairs(t *testing.T) {
	r := rand.New(rand.NewPCG(61, 62))
	for _, kernel := range testedKernels() {
		if kernel.Pairs == nil {
			continue
		}
		for n := range 70 {
			words, scales := make([]float32, n+1), make([]float32, n)
			for i := range words {
				words[i] = math.Float32frombits(r.Uint32())
			}
			for i := range scales {
				scales[i] = math.Float32frombits(r.Uint32())
			}
			want := append([]float32(nil), words...)
			scalePairsGo(want[:n], scales)
			kernel.Pairs.scale(words[:n], scales)
			for i := range words {
				x, y := math.Float32bits(want[i]), math.Float32bits(words[i])
				require.True(t, same(fp8.BF16, x>>16, y>>16) && same(fp8.BF16, x&0xffff, y&0xffff), "%s: word %d of %d is %#x, want %#x", kernel.Name, i, n, y, x)
			}
		}
		words := []float32{pairOf(1.5, -0.75), pairOf(0, float32(math.Inf(-1)))}
		kernel.Pairs.scale(words, []float32{pairOf(3.5, 0x1p-9), pairOf(2, 0x1p-127)})
		require.Equal(t, []float32{pairOf(5.25, -0x1.8p-10), pairOf(0, float32(math.Inf(-1)))}, words)
	}
}

// Where the scales of a run let no sum be subnormal and none overflow, it multiplies pairs, and
// where they do not, FP32; the bits are those of the definition. Blocks of zeros count for
// nothing, nor do scales of NaN.
func TestScaledGemmChoosesPairs(t *testing.T) {
	const unit = 9 // E4M3's values are multiples of 2^-9
	const lowest, highest = 2*127 + 2*unit - 126, 2*127 + 127 - 17
	cases := []struct {
		a, b   int // E8M0 codes of the operands
		spread int
		run    int
		pairs  bool
	}{
		{127, 127, 0, 32, true},
		{73, lowest - 73, 0, 32, true},
		{73, lowest - 1 - 73, 0, 32, false},
		{unit, 200, 0, 32, false},
		{unit + 1, 200, 0, 32, true}, // A's smallest elements are 2^-126
		{200, unit, 0, 32, false},
		{160, highest - 160, 0, 32, true},
		{160, highest + 1 - 160, 0, 32, false},
		{127, 120, 4, 6, true},
		{127, 120, 4, 7, true},
		{127, 120, 4, 1, true},
	}
	r := rand.New(rand.NewPCG(63, 64))
	for at, c := range cases {
		for trans := range 4 {
			transA, transB := trans&1 > 0, trans&2 > 0
			shape := gemmCase{m: 17, n: 40, k: 95, a: fp8.E4M3, b: fp8.E4M3, out: fp8.F32, transA: transA, transB: transB, alpha: 1}
			a, b, out, e := shape.operands(r)
			scaled := func(x memory.Matrix, along bool, code int) memory.BlockScales {
				block := backend.ScaleBlock{Rows: c.run, Cols: 1}
				if along {
					block = backend.ScaleBlock{Rows: 1, Cols: c.run}
				}
				s := randomBlocks(r, x, block, fp8.E8M0)
				for i := range s.Codes {
					s.Codes[i] = uint8(code + r.IntN(2)*c.spread)
				}
				for i := range x.Rows {
					for j := range x.Cols {
						switch {
						case s.Index(i, j) == 0:
							setCode(x, i*x.LD+j, r.Uint32()&0x80) // zeros
						case r.IntN(2) > 0:
							setCode(x, i*x.LD+j, r.Uint32()&0x80|[]uint32{1, 0x7e}[r.IntN(2)]) // the smallest, the largest
						}
					}
				}
				s.Codes[0], s.Codes[len(s.Codes)-1] = 0, 0xff
				return s
			}
			scaleA, scaleB := scaled(a, !transA, c.a), scaled(b, transB, c.b)
			rows, cols := rowsOf(a, transA, false), rowsOf(b, transB, true)
			scaleRows(rows, &scaleA, transA)
			scaleRows(cols, &scaleB, !transB)
			want := chainsFMA(rows, cols)
			p := pool.New(1 + trans%2)
			for _, kernel := range testedKernels() {
				g, err := NewWith(kernel, p, a, transA, b, transB, out)
				require.NoError(t, err)
				require.NoError(t, g.ScaleBlocks(scaleA, scaleB, 0))
				g.Run(e)
				require.Equal(t, kernel.Pairs != nil && c.pairs, g.pairs != nil, "%s: case %d", kernel.Name, at)
				sameElements(t, want, out, fmt.Sprint(kernel.Name, " case ", at, shape))
			}
			p.Close()
		}
	}
}

// A block of zeros whose scale is E8M0's smallest leaves a run to pairs; one nonzero element
// leaves it to FP32, wherever it is in the block.
func TestBlockIsZero(t *testing.T) {
	for _, d := range []fp8.DType{fp8.E4M3, fp8.E2M1} {
		x := newMatrix(d, 6, 50, 52)
		for i := range x.Rows * x.LD {
			setCode(x, i, 0)
		}
		for _, block := range []backend.ScaleBlock{{Rows: 1, Cols: 32}, {Rows: 4, Cols: 1}, {Rows: 4, Cols: 16}, {}, {Cols: 16}} {
			down, across := block.ScaleShape(x.Rows, x.Cols)
			s := memory.BlockScales{Rows: block.Rows, Cols: block.Cols, Across: across}
			for i := range x.Rows {
				for j := range x.Cols {
					setCode(x, i*x.LD+j, 1)
					for at := range down * across {
						require.Equal(t, at != s.Index(i, j), blockIsZero(&x, &s, at), "%s %s: block %d, element %d, %d", d, block, at, i, j)
					}
					setCode(x, i*x.LD+j, 0)
				}
			}
		}
	}
}
