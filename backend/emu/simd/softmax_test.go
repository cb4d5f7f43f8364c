package simd

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func TestExp2(t *testing.T) {
	worst := 0.0
	for bits := uint64(0); bits < 1<<32; bits += 4999 {
		x := math.Float32frombits(uint32(bits))
		want, got := math.Exp2(float64(x)), Exp2(x)
		switch {
		case want > math.MaxFloat32: // rounding may still give the largest finite value
			require.Greater(t, got, float32(math.MaxFloat32*0.999999), "2^%v", x)
		case want < 0x1p-150:
			require.Zero(t, got, "2^%v", x)
		case want != want:
			require.True(t, got != got, "2^%v", x)
		default:
			worst = max(worst, ulps(got, want))
		}
	}
	require.LessOrEqual(t, worst, 1.5, "units in the last place")
	for n := -149; n < 128; n++ {
		require.Equal(t, float32(math.Ldexp(1, n)), Exp2(float32(n)))
	}
	for _, x := range special {
		got := Exp2(x)
		switch {
		case x != x:
			require.True(t, got != got)
		case x > 128:
			require.True(t, math.IsInf(float64(got), 1), "2^%v is %v", x, got)
		case x < -150:
			require.Zero(t, got, "2^%v", x)
		}
	}
}

// scoreRows is a block of scores (a), gradients of them (b), and values per row (x, y).
type scoreRows struct {
	a, b             []float32
	ld, width        int
	visible          []int
	x, y             []float32 // one value per row, and guard values
	scale, gradScale float32
}

func newScoreRows(random *rand.Rand) scoreRows {
	wild := random.IntN(3) == 0
	values := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(random.NormFloat64() * 8)
			if wild && random.IntN(20) == 0 {
				x[i] = special[random.IntN(len(special))]
			}
		}
		return x
	}
	rows := 1 + random.IntN(16)
	s := scoreRows{width: 16 * (1 + random.IntN(9)), scale: 0.18, gradScale: 0.125}
	s.ld = s.width + random.IntN(20)
	at := random.IntN(17)
	s.a, s.b = values((rows+1)*s.ld + at)[at:], values((rows+1)*s.ld + at)[at:]
	s.visible = make([]int, rows)
	for r := range s.visible {
		s.visible[r] = random.IntN(s.width + 1)
		if random.IntN(3) == 0 {
			s.visible[r] = s.width
		}
	}
	s.x, s.y = values(rows+guard), values(rows+guard)
	return s
}

func (s scoreRows) clone() scoreRows {
	s.a, s.b, s.x, s.y = slices.Clone(s.a), slices.Clone(s.b), slices.Clone(s.x), slices.Clone(s.y)
	return s
}

// clearRest clears what BF16 codes in rows of x leave undefined.
func (s scoreRows) clearRest(x []float32) {
	for r := range s.visible {
		clear(x[r*s.ld:][s.width/2 : s.width])
	}
}

// roundRowsBF16 rounds to nearest even.
func TestRoundRowsBF16(t *testing.T) {
	x := make([]float32, 32)
	copy(x, []float32{1, 1 + 0x1p-8, 1 + 0x1.8p-7, 1 + 0x1.01p-8, -math.MaxFloat32, 0x1p-149, float32(math.NaN())})
	roundRowsBF16(x, 16, 16, 1)
	codes := unsafe.Slice((*uint16)(unsafe.Pointer(&x[0])), 16)
	require.Equal(t, []uint16{0x3f80, 0x3f80, 0x3f82, 0x3f81, 0xff80, 0, 0x7fc0, 0}, codes[:8])
}

// The kernels give the bits of their twins, change nothing beyond a row's width, and
// ignore hidden scores.
func TestSoftmaxKernels(t *testing.T) {
	for _, c := range []struct {
		name         string
		kernel, twin func(s *scoreRows)
	}{
		{
			"max",
			func(s *scoreRows) { MaxRows(s.x, s.a, s.ld, s.visible) },
			func(s *scoreRows) { maxRowsGo(s.x, s.a, s.ld, s.visible) },
		},
		{
			"weigh",
			func(s *scoreRows) { WeighRows(s.a, s.ld, s.width, s.visible, s.scale, s.x, s.y) },
			func(s *scoreRows) { weighRowsGo(s.a, s.ld, s.width, s.visible, s.scale, s.x, s.y) },
		},
		{
			"gradient",
			func(s *scoreRows) {
				ScoreGradientRows(s.a, s.b, s.ld, s.width, s.visible, s.scale, s.gradScale, s.x, s.y)
			},
			func(s *scoreRows) {
				scoreGradientRowsGo(s.a, s.b, s.ld, s.width, s.visible, s.scale, s.gradScale, s.x, s.y)
			},
		},
		{
			"weigh, BF16",
			func(s *scoreRows) {
				WeighRowsBF16(s.a, s.ld, s.width, s.visible, s.scale, s.x, s.y)
				s.clearRest(s.a)
			},
			func(s *scoreRows) {
				weighRowsGo(s.a, s.ld, s.width, s.visible, s.scale, s.x, s.y)
				roundRowsBF16(s.a, s.ld, s.width, len(s.visible))
				s.clearRest(s.a)
			},
		},
		{
			"gradient, BF16",
			func(s *scoreRows) {
				ScoreGradientRowsBF16(s.a, s.b, s.ld, s.width, s.visible, s.scale, s.gradScale, s.x, s.y)
				s.clearRest(s.a)
				s.clearRest(s.b)
			},
			func(s *scoreRows) {
				scoreGradientRowsGo(s.a, s.b, s.ld, s.width, s.visible, s.scale, s.gradScale, s.x, s.y)
				roundRowsBF16(s.a, s.ld, s.width, len(s.visible))
				roundRowsBF16(s.b, s.ld, s.width, len(s.visible))
				s.clearRest(s.a)
				s.clearRest(s.b)
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachInstructionSet(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(7, 8))
				for range 400 {
					want := newScoreRows(random)
					got := want.clone()
					c.twin(&want)
					c.kernel(&got)
					what := fmt.Sprintf("%d rows of %d, visible %v", len(want.visible), want.width, want.visible)
					if c.name == "max" { // the sign of a zero maximum is unspecified
						for i := range want.x {
							want.x[i], got.x[i] = want.x[i]+0, got.x[i]+0
						}
					}
					sameFloats(t, want.a, got.a, what)
					sameFloats(t, want.b, got.b, what)
					sameFloats(t, want.x, got.x, what)
					sameFloats(t, want.y, got.y, what)
				}
			})
		})
	}
}
