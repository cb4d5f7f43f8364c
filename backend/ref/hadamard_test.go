package ref

import (
	"math"
	"math/bits"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
)

// The op on the identity gives the matrix of its definition, which is orthogonal, along
// rows and along columns.
func TestHadamardIsAnOrthogonalMatrix(t *testing.T) {
	const signs = 0xd7e8
	for size := 4; size <= backend.MaxHadamard; size *= 2 {
		for _, columns := range []bool{false, true} {
			identity, want := make([]float64, size*size), make([]float64, size*size)
			for i := range size {
				identity[i*size+i] = 1
				for j := range size { // row i of the identity becomes column i of H·diag(s)
					h := 1 - 2*float64(bits.OnesCount(uint(i&j))%2)
					if signs>>(i%16)&1 != 0 {
						h = -h
					}
					at := i*size + j
					if columns {
						at = j*size + i
					}
					want[at] = h / math.Sqrt(float64(size))
				}
			}
			o := newBoard(t)
			out := o.m("out", size, size, make([]float64, size*size)...)
			o.run(&backend.Hadamard{X: o.m("x", size, size, identity...), Out: cast(out), Size: size, Columns: columns, Signs: signs})
			o.expect(out, want...)

			got, err := o.b.Values(out)
			require.NoError(t, err)
			for i := range size {
				for j := range size {
					dot := 0.0
					for k := range size {
						dot += got[i*size+k] * got[j*size+k]
					}
					require.InDelta(t, identity[i*size+j], dot, 1e-12)
				}
			}
		}
	}
}

// A GEMM keeps its result if both operands are rotated along K.
func TestHadamardOfBothOperandsKeepsTheProduct(t *testing.T) {
	const tokens, in, out = 32, 3, 5
	o := newBoard(t)
	values := func(n int) []float64 {
		list := make([]float64, n)
		for i := range list {
			list[i] = math.Sin(float64(7*i*i + n))
		}
		return list
	}
	x, dy := values(tokens*in), values(tokens*out)
	want := make([]float64, out*in)
	for k := range tokens {
		for i := range out {
			for j := range in {
				want[i*in+j] += dy[k*out+i] * x[k*in+j]
			}
		}
	}
	rotated := func(name string, cols int, values []float64) *backend.Tensor {
		to := o.m(name+".rotated", tokens, cols, make([]float64, tokens*cols)...)
		o.run(&backend.Hadamard{X: o.m(name, tokens, cols, values...), Out: cast(to), Size: 16, Columns: true, Signs: 0xd7e8})
		got, err := o.b.Values(to)
		require.NoError(t, err)
		require.NotEqual(t, values, got)
		o.data[to] = got
		return to
	}
	dw := o.m("dw", out, in, make([]float64, out*in)...)
	a, b := rotated("dy", out, dy), rotated("x", in, x)
	o.run(&backend.MatMul{A: a, TransA: true, B: b, Out: dw})
	o.expect(dw, want...)
}

// Half of the signs of a seed are -1, and half differ from those of another seed.
func TestSignsOfTheSeed(t *testing.T) {
	count := map[float32]int{}
	o := &backend.Hadamard{Control: &backend.Tensor{}}
	differ := 0
	for i := range 4096 {
		count[o.SignOf(i%backend.MaxHadamard, uint64(i))]++
		if o.SignOf(i%64, 1) != o.SignOf(i%64, uint64(i)) {
			differ++
		}
	}
	require.Len(t, count, 2)
	require.InDelta(t, 2048, count[1], 130) // four standard deviations
	require.InDelta(t, 2048, differ, 130)
}
