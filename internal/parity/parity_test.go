package parity

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/data"
)

// fixed gives the same logits after each token.
type fixed []float32

func (f fixed) Logits(_ context.Context, ids []int32, _ backend.Observer) (rows [][]float32, err error) {
	for range ids {
		rows = append(rows, f)
	}
	return rows, nil
}

// The figures by hand: p = (1/2, 1/4, 1/4), q = (1/4, 1/2, 1/4).
func TestCompareByHand(t *testing.T) {
	ln := func(x float64) float32 { return float32(math.Log(x)) }
	a, b := fixed{ln(2), ln(1), ln(1)}, fixed{ln(1), ln(2), ln(1)}
	stream := data.Text{0, 0, 1, 2, 2, 0, 0} // targets of two windows: 0 1 2, 2 0 0
	r, err := Compare(t.Context(), a, b, stream, 3, 9)
	require.NoError(t, err)
	require.Equal(t, 6, r.Tokens)
	require.InDelta(t, 0.5*math.Log(2)-0.25*math.Log(2), r.KL, 1e-7)
	require.InDelta(t, r.KL, r.KLMax, 1e-12)
	require.InDelta(t, 4./6*math.Log(2), r.Ratio, 1e-7)
	require.Zero(t, r.Same)
	require.InDelta(t, (3*math.Log(2)+3*math.Log(4))/6, r.LossA, 1e-7)
	require.InDelta(t, (math.Log(2)+5*math.Log(4))/6, r.LossB, 1e-7)
	require.Equal(t, Ratio{Window: 0, At: 1, ID: 0, A: r.Largest.A, B: r.Largest.B}, r.Largest)
	require.InDelta(t, 0.5, r.Largest.B/r.Largest.A, 1e-7)

	same, err := Compare(t.Context(), a, a, stream, 3, 1)
	require.NoError(t, err)
	require.Equal(t, 3, same.Tokens)
	require.Zero(t, same.KL+same.Ratio)
	require.Equal(t, 1., same.Same)

	_, err = Compare(t.Context(), a, b, stream, 7, 1)
	require.ErrorContains(t, err, "7 tokens are too few for a window of 7")
	_, err = Compare(t.Context(), a, fixed{ln(1), float32(math.NaN()), 0}, stream, 3, 1)
	require.ErrorContains(t, err, "not finite")
}

// A tensor is compared with the one of its name and place that the other path wrote.
func TestDifferences(t *testing.T) {
	var x trace
	x.record("x: add", "x", []float64{3, 4})
	x.record("y: add", "y", []float64{1})
	x.record("z: add", "z", []float64{2})
	x.record("x: mul", "x", []float64{0, 5})
	x.record("w: add", "w", []float64{1})
	x.compare("z: add", "z", []float64{2})
	x.compare("x: sub", "x", []float64{3, 4.5})
	x.compare("y: add", "y", []float64{1, 2}) // another shape
	x.compare("v: add", "v", []float64{1})
	x.compare("x: mul", "x", []float64{3, 1})
	x.compare("x: mul", "x", []float64{3, 1}) // written more often than by the first path
	require.Equal(t, []Difference{{"x: add", "x", 0.1}, {"z: add", "z", 0}, {"x: mul", "x", 1}}, x.differences())
	for _, x := range x.list {
		require.Equal(t, x.Tensor == "w", x.values != nil, "memory of compared tensors is free")
	}
}
