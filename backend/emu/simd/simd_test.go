package simd

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// special are values at the edges of formats and functions.
var special = []float32{
	0, float32(math.Copysign(0, -1)), 1, -1, 88.7, 88.8, -87.3, -87.4, -103.9, -104, 103.9, 104, -200, 1e30, -1e30,
	float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), 1e-45, -1e-45, -1e-30, 1e-39,
	math.MaxFloat32, -math.MaxFloat32, 0x1p-126,
}

// sameFloats requires equal bits; any NaN equals any other.
func sameFloats(t *testing.T, want, got []float32, what string) {
	t.Helper()
	require.Len(t, got, len(want), what)
	for i, w := range want {
		if g := got[i]; math.Float32bits(w) != math.Float32bits(g) && (w == w || g == g) {
			require.Failf(t, what, "element %d of %d: want %v, got %v", i, len(want), w, g)
		}
	}
}

// operands are slices of n values with random alignment (data), within slices of values
// that a kernel must not change (all).
type operands struct{ all, data [][]float32 }

// guard is how many values follow a slice.
const guard = 17

func newOperands(random *rand.Rand, count, n int) (o operands) {
	wild := random.IntN(2) == 0
	for range count {
		at := random.IntN(17)
		x := make([]float32, at+n+guard)
		for i := range x {
			x[i] = float32(random.NormFloat64() * 8)
			if wild && random.IntN(4) == 0 {
				x[i] = special[random.IntN(len(special))]
			}
		}
		o.all, o.data = append(o.all, x), append(o.data, x[at:at+n:at+n])
	}
	return o
}

func (o operands) clone() (c operands) {
	for i, x := range o.all {
		x = slices.Clone(x)
		at := len(o.all[i]) - guard - len(o.data[i])
		n := len(o.data[i])
		c.all, c.data = append(c.all, x), append(c.data, x[at:at+n:at+n])
	}
	return c
}

// sameKernels requires the same bits from a kernel and its twin, in all slices of x and
// in the returned value, for all lengths up to 149.
func sameKernels(t *testing.T, count int, kernel, twin func(x [][]float32) float32) {
	eachInstructionSet(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(5, 6))
		for n := range 150 {
			want := newOperands(random, count, n)
			got := want.clone()
			wantSum, gotSum := twin(want.data), kernel(got.data)
			for i := range want.all {
				sameFloats(t, want.all[i], got.all[i], fmt.Sprintf("%d elements, operand %d", n, i))
			}
			sameFloats(t, []float32{wantSum}, []float32{gotSum}, fmt.Sprintf("sum of %d elements", n))
		}
	})
}
