//go:build cuda && cgo && linux

package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/conformance"
)

// Matrices of all shapes, in F32 and BF16, are transposed bit for bit. Runs of several ranks
// transpose FP8 codes (TestRanksShareTheOptimizer).
func TestTranspose(t *testing.T) {
	standIns(t)
	d, _, err := backend.Find("cuda")
	require.NoError(t, err)
	passed := 0
	for c := range conformance.Of("transpose", 0, func(b *conformance.Bench) backend.Op {
		x := b.Input("x", b.Rows, b.Cols)
		return &transpose{X: x, Out: b.Result("out", x.DType, b.Cols, b.Rows)}
	}) {
		require.NoError(t, c.Run(t.Context(), d, ""), c.Name)
		passed++
	}
	require.GreaterOrEqual(t, passed, 8)
}
