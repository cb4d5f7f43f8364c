package nn

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/conformance"
	"octet/fp8"
)

// Backends compute the ops of l1.go as their References define them.
func TestL1Ops(t *testing.T) {
	for _, name := range []string{"emu", "ref"} {
		driver, device, err := backend.Find(name)
		require.NoError(t, err)
		for _, norm := range []float64{1, 1e6} { // the bound decides; the amax decides
			for c := range conformance.Of("row_bounds", 0x1p-22, func(b *conformance.Bench) backend.Op {
				return &rowBounds{X: b.Input("x", b.Rows, b.Cols), Out: b.Result("out", fp8.F32, b.Rows, 1), Limit: 127, Norm: norm}
			}) {
				t.Run(name+"/"+c.Name, func(t *testing.T) { require.NoError(t, c.Run(t.Context(), driver, device)) })
			}
		}
		for c := range conformance.Of("truncated", 0, func(b *conformance.Bench) backend.Op {
			return &truncated{X: b.Input("x", b.Rows, b.Cols), Scale: b.Vector("scale", 1), Out: b.Casts("out", b.Rows, b.Cols)}
		}) {
			t.Run(name+"/"+c.Name, func(t *testing.T) { require.NoError(t, c.Run(t.Context(), driver, device)) })
		}
	}
}

// By hand: a row whose norm exceeds the bound needs a smaller scale than its amax does, another
// row does not, and a NaN is never lost.
func TestRowBoundsByHand(t *testing.T) {
	loop := (&rowBounds{Limit: 127, Norm: 254}).Loop()
	bound := func(row ...float32) float32 {
		out := [][]float32{{0}}
		loop.F(out, [][]float32{row})
		return out[0][0]
	}
	require.InDelta(t, 2.0, bound(1, -1, 1, -1), 0) // norm 4, half of it
	require.InDelta(t, 3.0, bound(0, -3, 1), 0)     // norm 4, amax 3
	require.True(t, math.IsNaN(float64(bound(1, float32(math.NaN()), 2))))

	out := [][]float32{make([]float32, 4)}
	(&truncated{}).Loop().F(out, [][]float32{{0.99, -0.99, 0.26, -1.5}, {4}})
	require.Equal(t, []float32{0.75, -0.75, 0.25, -1.5}, out[0])
}
