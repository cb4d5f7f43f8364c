package simd

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSumSquaresTwins(t *testing.T) {
	eachInstructionSet(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(7, 8))
		for n := range 300 {
			x := newOperands(random, 1, n).data[0]
			var lanes [32]float64
			squareLanesGo(&lanes, x)
			want, got := fold(lanes[:]), SumSquares(x)
			if want == want || got == got {
				require.Equal(t, math.Float64bits(want), math.Float64bits(got), "%d elements: want %v, got %v", n, want, got)
			}
		}
	})
}
