package simd

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIntegersTwins(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	eachInstructionSet(t, func(t *testing.T) {
		for n := range 150 {
			sums, x := make([]int32, n+1), make([]float32, n)
			want, back := make([]int32, n+1), make([]float32, n)
			for i := range n {
				sums[i], x[i] = int32(r.Uint32()), (r.Float32()-0.5)*float32(uint64(1)<<r.IntN(32))
				want[i] = sums[i] + int32(x[i])
				back[i] = float32(want[i])
			}
			AddTruncated(sums[:n], x)
			require.Equal(t, want, sums, fmt.Sprint(n))
			FromInt32(x, sums[:n])
			require.Equal(t, back, x, fmt.Sprint(n))
		}
	})
}
