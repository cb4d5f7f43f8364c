package train

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend/arith"
	"octet/fp8"
)

// bitsOf returns the bits of an accumulator that holds every sum of magnitude up to limit.
func bitsOf(limit float64) int { return int(math.Ceil(math.Log2(limit+1) + 1)) }

// l1Cap returns the largest L1 norm of integer weights whose sums fit an accumulator of this many
// bits, for inputs of 8 bits: A2Q (arXiv 2301.13376, equation 3), and A2Q+'s for zero-centered
// weights (arXiv 2401.10432), in which positive and negative weights share it equally.
func l1Cap(bits int, signed, centered bool) float64 {
	switch top := math.Exp2(float64(bits-1)) - 1; {
	case centered:
		return 2 * top / 255
	case signed:
		return top / 128
	default:
		return top / 256
	}
}

// withL1Norm returns round(v·norm/‖v‖₁), limited to INT8. A2Q rounds toward zero.
func withL1Norm(v []float32, norm float64, round func(float64) float64) []int32 {
	q := make([]int32, len(v))
	scale := norm / l1(v)
	for i, x := range v {
		q[i] = int32(min(max(round(float64(x)*scale), -127), 127))
	}
	return q
}

func l1[E int32 | float32](x []E) (sum float64) {
	for _, v := range x {
		sum += math.Abs(float64(v))
	}
	return sum
}

func centered(v []float32) []float32 {
	mean := float32(0)
	for _, x := range v {
		mean += x / float32(len(v))
	}
	v = slices.Clone(v)
	for i := range v {
		v[i] -= mean
	}
	return v
}

// overflows reports whether either worst input overflows the accumulator: each weight meets one
// end of the inputs' range, or the other if its sign differs.
func overflows(q []int32, bits int, low, high int32) bool {
	for _, sign := range []int32{1, -1} {
		x := make([]int32, len(q))
		for i, w := range q {
			x[i] = low
			if w*sign > 0 {
				x[i] = high
			}
		}
		exact, saturated := (&arith.Accumulator{Bits: 32}).Dot(x, q), (&arith.Accumulator{Bits: bits, Saturate: true}).Dot(x, q)
		if exact != (&arith.Accumulator{Bits: bits}).Dot(x, q) || saturated != exact {
			return true
		}
	}
	return false
}

// trainedRows returns the rows of a trained down_proj, with K = 352 as in the model tiny.
func trainedRows(t *testing.T) (rows [][]float32) {
	c := small(t, "bf16")
	c.Model.FFN = 352
	tr := newTrainer(t, c, 2, false)
	steps(t, tr, 40)
	for _, p := range tr.Model.Params {
		if strings.HasSuffix(p.Name, ".mlp.down_proj.weight") {
			rows = slices.AppendSeq(rows, slices.Chunk(readMaster(t, tr, p), p.Cols()))
		}
	}
	return rows
}

// A2Q: integer weights with a bounded L1 norm, rounded toward zero, never overflow a narrow
// accumulator, whatever the input, and neither does any prefix of the sum: the saturating
// accumulator, which checks after each addition, agrees. Rounded to nearest, some overflow.
func TestA2Q(t *testing.T) {
	rows := trainedRows(t)
	const k = 352
	byTypes := bitsOf(k * 128 * 128)
	measured := 0.
	for _, v := range rows {
		measured = max(measured, l1(int8Codes(v)))
	}
	t.Logf("K = %d, inputs and weights of 8 bits: %d bits by types, %d by the largest L1 norm, %.0f", k, byTypes, bitsOf(measured*128), measured)
	require.Equal(t, 24, byTypes)
	require.Less(t, bitsOf(measured*128), byTypes)

	for _, bits := range []int{16, 18, 20} {
		norm := l1Cap(bits, true, false)
		ones := slices.Repeat([]int32{1}, int(norm)+1)
		require.False(t, overflows(ones[1:], bits, -128, 128))
		require.True(t, overflows(ones, bits, -128, 128), "the bound is tight")
		share := func(round func(float64) float64) (wrong, spent, cosine float64) {
			for _, v := range rows {
				q := withL1Norm(v, norm, round)
				if overflows(q, bits, -128, 128) {
					wrong++
				}
				spent += l1(q) / norm
				cosine += cosineOf(q, v)
			}
			n := float64(len(rows))
			return wrong / n, spent / n, cosine / n
		}
		wrong, spent, cosine := share(math.Trunc)
		over, _, _ := share(math.RoundToEven)
		t.Logf("%d bits, L1 norm up to %5.0f: rows that overflow: %.3f toward zero, %.3f to nearest; share of the norm spent %.2f, cosine %.2f",
			bits, norm, wrong, over, spent, cosine)
		require.Zero(t, wrong)
		require.NotZero(t, over, "the control")
	}
}

func cosineOf(q []int32, v []float32) float64 {
	dot, qq, vv := 0., 0., 0.
	for i, x := range q {
		dot += float64(x) * float64(v[i])
		qq += float64(x) * float64(x)
		vv += float64(v[i]) * float64(v[i])
	}
	return dot / math.Sqrt(qq*vv)
}

// A2Q+ gains a bit for inputs without a sign, and next to nothing for the signed ones of INT8.
// Rows that are not centered overflow at its larger norm.
func TestA2QPlus(t *testing.T) {
	rows := trainedRows(t)
	const bits = 20
	for _, signed := range []bool{true, false} {
		low, high := int32(0), int32(255)
		if signed {
			low, high = -128, 127
		}
		own, plus := l1Cap(bits, signed, false), l1Cap(bits, signed, true)
		wrong, control := 0, 0
		for i, v := range rows {
			v = slices.Clone(v)
			for j := range v {
				v[j] += float32(i%3-1) * 0.02 // layers whose weights have a mean
			}
			if overflows(withL1Norm(centered(v), plus, math.Trunc), bits, low, high) {
				wrong++
			}
			if overflows(withL1Norm(v, plus, math.Trunc), bits, low, high) {
				control++
			}
		}
		t.Logf("signed %v: L1 norm up to %.0f, centered %.0f; rows that overflow at that: centered %d, as they are %d of %d", signed, own, plus, wrong, control, len(rows))
		require.Zero(t, wrong)
		if !signed {
			require.InEpsilon(t, 2*own, plus, 0.01)
			require.NotZero(t, control)
		}
	}
}

// int8Codes returns the INT8 codes of x with one scale.
func int8Codes(x []float32) []int32 {
	codes, q := make([]uint8, len(x)), make([]int32, len(x))
	fp8.Quantize8(codes, x, fp8.INT8, 127/fp8.Amax(x), false)
	for i, c := range codes {
		q[i] = int32(int8(c))
	}
	return q
}
