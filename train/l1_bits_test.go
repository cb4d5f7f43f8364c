package train

import (
	"context"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/arith"
)

// codesOf returns the codes of a tensor with a scale for each row, or one for all.
func codesOf(t *testing.T, m backend.Memory, x *backend.Tensor) []int32 {
	t.Helper()
	values, err := backend.Values(m, x)
	require.NoError(t, err)
	inverse, err := backend.Values(m, x.Scale)
	require.NoError(t, err)
	codes, perScale := make([]int32, len(values)), len(values)/len(inverse)
	for i, v := range values {
		code := math.RoundToEven(v / inverse[i/perScale])
		require.InDelta(t, code, v/inverse[i/perScale], 1e-3)
		codes[i] = int32(code)
	}
	return codes
}

// sums has what the INT8 GEMMs of a step's forward pass need of an accumulator.
type sums struct {
	norm     float64 // the largest L1 norm of a row of weights
	prefix   int     // the largest prefix sum of real inputs
	overflow int     // results that an accumulator of 16 bits gets wrong
	worst    int     // rows that the worst input overflows
	zeros    float64 // share of weights of code 0
}

// fpropSums trains under int8-switchback with precision.l1_bits and returns the sums, and the losses.
func fpropSums(t *testing.T, bits, accumulator int) (s sums, losses []float64) {
	c := small(t, "int8-switchback")
	c.Model.Layers, c.Model.Dim, c.Model.FFN, c.Precision.L1Bits = 1, 64, 144, &bits
	tr := newTrainer(t, c, 1, false)
	for _, r := range steps(t, tr, 30) {
		losses = append(losses, r.Loss)
	}
	narrow := &arith.Accumulator{Bits: accumulator, Saturate: true} // it saturates after every addition
	weights := 0
	for _, p := range []*backend.Program{tr.Micro[Variant{true, true}]} {
		loaded, err := tr.ranks[0].device.Load(p)
		require.NoError(t, err)
		require.NoError(t, loaded[0].RunObserved(context.Background(), func(n *backend.Node, m backend.Memory) error {
			op, ok := n.Op.(*backend.MatMul)
			if !ok || !op.TransB || !op.A.DType.IsQuantized() {
				return nil
			}
			x, w, k := codesOf(t, m, op.A), codesOf(t, m, op.B), op.A.Cols()
			for j := range op.B.Rows() {
				q := w[j*k : (j+1)*k]
				s.norm = max(s.norm, l1(q))
				if overflows(q, accumulator, -128, 128) {
					s.worst++
				}
				for _, v := range q {
					if weights++; v == 0 {
						s.zeros++
					}
				}
				for i := range op.A.Rows() / 2 {
					row, sum := x[i*k:(i+1)*k], int32(0)
					if narrow.Dot(row, q) != (&arith.Accumulator{Bits: 32}).Dot(row, q) {
						s.overflow++
					}
					for at, v := range q {
						sum += v * row[at]
						s.prefix = max(s.prefix, int(max(sum, -sum)))
					}
				}
			}
			return nil
		}))
	}
	s.zeros /= float64(weights)
	return s, losses
}

// A2Q in training: the rows of all trained INT8 weights obey the bound, so that no sum of fprop leaves
// an accumulator of P bits, whatever the input; without the bound some do. The model still learns.
func TestL1Bits(t *testing.T) {
	for _, bits := range []int{0, 14, 16} {
		accumulator := bits
		if bits == 0 {
			accumulator = 16 // the control
		}
		s, losses := fpropSums(t, bits, accumulator)
		t.Logf("l1_bits %2d, accumulator of %d bits: norm up to %.0f, prefix of real inputs up to %d of %d, results that overflow %d, rows of a worst input %d, codes 0 %.2f, loss %.4f",
			bits, accumulator, s.norm, s.prefix, 1<<(accumulator-1)-1, s.overflow, s.worst, s.zeros, losses[len(losses)-1])
		require.Less(t, losses[len(losses)-1], losses[0]-0.5)
		if bits == 0 {
			require.NotZero(t, s.worst, "the control")
			continue
		}
		require.LessOrEqual(t, s.norm, l1Cap(bits, true, false))
		require.Greater(t, s.norm, l1Cap(bits, true, false)/2, "the bound is used")
		require.Zero(t, s.overflow)
		require.Zero(t, s.worst)
	}
}

// What the bound cannot apply to is refused.
func TestL1BitsAreRefused(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"precision.l1_bits = 16 bounds integer weights, but recipe fp8-delayed has none": func(c *Config) { c.Recipe = "fp8-delayed" },
		"l1_bits = 8 (use 0, or an accumulator of 9 to 28 bits)":                         func(c *Config) { *c.Precision.L1Bits = 8 },
		"l1_bits needs whole weights on every rank, and one scale": func(c *Config) {
			c.Precision.Rows = []PrecisionRow{{Scope: "*.up_proj", Operand: "weight", Granularity: "row"}}
		},
	} {
		c, bits := small(t, "int8-switchback"), 16
		c.Precision.L1Bits = &bits
		change(&c)
		require.ErrorContains(t, c.Resolve(), want)
	}
	c, bits := small(t, "int8-switchback"), 16
	c.Precision.L1Bits, c.Train.Ranks, c.Train.ZeroStage = &bits, 2, 1
	require.True(t, strings.Contains(c.Resolve().Error(), "train.zero_stage 0"))
}
