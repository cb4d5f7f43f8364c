//go:build !noasm

package gemm

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/cpu"

	"octet/fp8"
)

// The kernels that scale tiles need AVX-512 alone.
func TestAMXScaleKernels(t *testing.T) {
	if !cpu.X86.HasAVX512F {
		t.Skip("this processor has no AVX-512")
	}
	r := rand.New(rand.NewPCG(57, 58))
	special := []float32{0x1p-127, 0x1p127, float32(math.NaN()), 0}
	for round := range 100 {
		var want, got [amxTile]uint16
		var scales tileScales
		for i := range want {
			want[i] = uint16(r.Uint32())
		}
		for half := range scales {
			for i := range scales[half] {
				scales[half][i] = fp8.E8M0.Float32(uint32(100 + r.IntN(50)))
				if r.IntN(8) == 0 {
					scales[half][i] = special[r.IntN(len(special))]
				}
			}
		}
		got = want
		amxScaleGo(&want, &scales, round%2 > 0)
		amxUnitKernel.scale(&got, &scales, round%2 > 0)
		for i := range want {
			require.True(t, same(fp8.BF16, uint32(want[i]), uint32(got[i])), "element %d is %#x, want %#x", i, got[i], want[i])
		}
	}
}
