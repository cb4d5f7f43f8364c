package attention

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend/emu/gemm"
	"octet/backend/emu/pool"
)

// sameFloats requires equal bits; all NaNs are equal.
func sameFloats(t *testing.T, want, got []float32, what string) {
	t.Helper()
	require.Len(t, got, len(want), what)
	for i, w := range want {
		if g := got[i]; math.Float32bits(w) != math.Float32bits(g) && (w == w || g == g) {
			require.Failf(t, what, "element %d of %d: want %v, got %v", i, len(want), w, g)
		}
	}
}

// newSheet returns a sheet with the minimum room, filled by number, at an address that
// changes with gap.
func newSheet(kernel *gemm.Kernel, rows, cols, gap int, number func() float32) sheet {
	ld := pool.RoundUp(cols, kernel.NR) + gap
	s := sheet{make([]float32, (rows+kernel.MR)*ld+gap)[gap:], ld}
	for i := range s.x {
		s.x[i] = number()
	}
	return s
}

// leftOf and rightOf return sheets as operands.
func leftOf(s sheet, transposed bool) *operand {
	if transposed {
		return rightOf(s)
	}
	return &operand{s.x, s.ld, 1}
}

func rightOf(s sheet) *operand { return &operand{s.x, 1, s.ld} }

// referenceMatMul defines matMul for operands whose products are exact.
func referenceMatMul(c sheet, rows, cols, k int, a sheet, transA bool, b sheet, add bool) {
	for i := range rows {
		for j := range cols {
			sum := float32(0)
			if add {
				sum = c.x[i*c.ld+j]
			}
			for l := range k {
				at := i*a.ld + l
				if transA {
					at = l*a.ld + i
				}
				sum += float32(a.x[at] * b.x[l*b.ld+j])
			}
			c.x[i*c.ld+j] = sum
		}
	}
}

// Every kernel computes the chain. It stores exactly the given rows, and the columns up to
// a multiple of nr.
func TestFP32MatMul(t *testing.T) {
	for _, kernel := range gemm.Kernels() {
		t.Run(kernel.Name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			bf16 := func() float32 {
				switch random.IntN(40) {
				case 0:
					return float32(math.Copysign(float64(random.IntN(2)), random.NormFloat64())) // zeros and ones
				case 1:
					return float32(math.Inf(1 - 2*random.IntN(2)))
				}
				return math.Float32frombits(math.Float32bits(float32(random.NormFloat64())) &^ 0xffff)
			}
			for trial := range 300 {
				rows, cols, k := 1+random.IntN(2*kernel.MR+3), 1+random.IntN(3*kernel.NR), 1+random.IntN(70)
				transA, add := trial%2 == 1, trial%4 >= 2
				a := newSheet(kernel, rows, k, random.IntN(20), bf16)
				if transA {
					a = newSheet(kernel, k, rows+kernel.MR, random.IntN(20), bf16)
				}
				b := newSheet(kernel, k, cols, random.IntN(20), bf16)
				c := newSheet(kernel, rows, cols, random.IntN(20), bf16)
				want := sheet{slices.Clone(c.x), c.ld}
				referenceMatMul(want, rows, cols, k, a, transA, b, add)

				space := carver{scratch: make([]float32, 1<<16)}
				tiles := newTiles(FP32(kernel), 1, 1, &space)
				packed := sheet{slices.Clone(c.x), c.ld}
				inScratch := tiles
				inScratch.inPlace = nil
				inScratch.panel, inScratch.corner = make([]float32, k*kernel.NR), make([]float32, kernel.MR*kernel.NR)
				tiles.matMul(c, rows, cols, k, leftOf(a, transA), 0, rightOf(b), 0, add)
				inScratch.matMul(packed, rows, cols, k, leftOf(a, transA), 0, rightOf(b), 0, add)

				what := fmt.Sprintf("%d×%d×%d, transposed %v, add %v", rows, cols, k, transA, add)
				wide := pool.RoundUp(cols, kernel.NR)
				for i := range len(c.x) / c.ld {
					computed := 0
					if i < rows {
						computed = wide
						sameFloats(t, want.row(i, cols), c.row(i, cols), what)
						sameFloats(t, want.row(i, cols), packed.row(i, cols), what+", packed")
					}
					beyond := func(s sheet) []float32 { return s.x[i*s.ld+computed : (i+1)*s.ld] }
					sameFloats(t, beyond(want), beyond(c), what+": beyond the result")
					sameFloats(t, beyond(want), beyond(packed), what+", packed: beyond the result")
				}
			}
		})
	}
}

// A multiply in place has the bits of its kernel's multiply for any floats.
func TestFP32MatMulOfFloats(t *testing.T) {
	for _, kernel := range gemm.Kernels() {
		if inPlace(kernel) == nil {
			continue
		}
		random := rand.New(rand.NewPCG(3, 4))
		number := func() float32 { return float32(random.NormFloat64()) }
		rows, cols, k := 2*kernel.MR+5, 70, 50
		a, b := newSheet(kernel, rows, k, 16, number), newSheet(kernel, k, cols, 16, number)
		c := newSheet(kernel, rows, cols, 16, number)
		packed := sheet{slices.Clone(c.x), c.ld}
		tiles := newTiles(FP32(kernel), 1, 1, &carver{})
		tiles.matMul(c, rows, cols, k, leftOf(a, false), 0, rightOf(b), 0, true)
		tiles.inPlace = nil
		tiles.panel, tiles.corner = make([]float32, k*kernel.NR), make([]float32, kernel.MR*kernel.NR)
		tiles.matMul(packed, rows, cols, k, leftOf(a, false), 0, rightOf(b), 0, true)
		for i := range rows {
			require.Equal(t, packed.row(i, cols), c.row(i, cols), "%s, row %d", kernel.Name, i)
		}
	}
}

func TestFP32Transposed(t *testing.T) {
	for _, kernel := range gemm.Kernels() {
		for _, n := range []int{1, kernel.TransposeRows, kernel.TransposeRows + 1, 32} {
			for _, k := range []int{1, 16, 40} {
				next := float32(0)
				count := func() float32 { next++; return next }
				src := newSheet(kernel, n+kernel.TransposeRows, pool.RoundUp(k, gemm.DepthUnit), 16, count)
				dst := newSheet(kernel, pool.RoundUp(k, gemm.DepthUnit), n+kernel.TransposeRows, 16, count)
				tiles := newTiles(FP32(kernel), 1, 1, &carver{scratch: make([]float32, 1<<16)})
				tiles.transpose(dst.x, dst.ld, src, n, k)
				for i := range n {
					for l := range k {
						require.Equal(t, src.x[i*src.ld+l], dst.x[l*dst.ld+i], "%s: (%d,%d)", kernel.Name, i, l)
					}
				}
			}
		}
	}
}
