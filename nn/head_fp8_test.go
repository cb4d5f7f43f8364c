package nn_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
)

var headConfig = nn.Config{
	Layers: 1, Dim: 32, Heads: 2, KVHeads: 2, FFN: 48, Vocab: 19,
	Activation: nn.SwiGLU, RopeTheta: 100, NormEps: 1e-5, InitStd: 0.02,
}

// An FP8 head with blocks along K computes in chunks of tokens what it computes at once:
// chunks begin where blocks begin.
func TestFP8HeadInChunks(t *testing.T) {
	for _, tied := range []bool{false, true} {
		for block, more := range map[int]int{16: 6, 32: 3} { // 100 tokens in 7 or 4 chunks
			c := headConfig
			c.Tied = tied
			row := recipe.Row{Scope: "lm_head", DType: fp8.E4M3, Scaling: recipe.Current, Granularity: recipe.By(1, block)}
			exact, whole := newLossProblem(t, c, 50), newLossProblem(t, c, 50, row)
			restore := nn.SetHeadElems(1)
			chunks := newLossProblem(t, c, 50, row)
			restore()
			require.Equal(t, whole.nodes+5*more, chunks.nodes, "logits GEMM, loss, casts of its gradient and two backward GEMMs for each more chunk")
			require.InEpsilon(t, whole.value(), chunks.value(), 1e-12)
			require.InEpsilon(t, exact.value(), whole.value(), 0.05)
			require.NotEqual(t, exact.value(), whole.value())
			for i, p := range whole.model.Params {
				want, got := whole.values(p.Grad), chunks.values(chunks.model.Params[i].Grad)
				require.InDeltaSlice(t, want, got, 1e-9, p.Name)
				require.Less(t, relative(exact.values(exact.model.Params[i].Grad), want), 0.15, p.Name)
			}
		}
	}
}

// Chunks hold whole groups of tokens that are rotated together.
func TestRotatedHeadInChunks(t *testing.T) {
	rows := []recipe.Row{
		{Scope: "lm_head", GEMM: recipe.Wgrad, Hadamard: recipe.Hadamard{Size: 64}},
		{Scope: "lm_head", DType: fp8.E4M3, Scaling: recipe.Current, Granularity: recipe.By(1, 32)},
	}
	whole := newLossProblem(t, headConfig, 64, rows...) // 128 tokens
	restore := nn.SetHeadElems(1)
	chunks := newLossProblem(t, headConfig, 64, rows...)
	restore()
	require.Greater(t, chunks.nodes, whole.nodes)
	require.InEpsilon(t, whole.value(), chunks.value(), 1e-12)
}

// relative returns the norm of the difference over that of want.
func relative(want, got []float64) float64 {
	var num, den float64
	for i := range want {
		num += (got[i] - want[i]) * (got[i] - want[i])
		den += want[i] * want[i]
	}
	return math.Sqrt(num / den)
}

// The gradient of the logits never exists as a whole, so it has no current scale of its own.
func TestHeadNeedsScalesOfChunks(t *testing.T) {
	r, err := recipe.Lookup("fp8-head")
	require.NoError(t, err)
	for _, c := range []struct {
		row  recipe.Row
		want string
	}{
		{recipe.Row{Scope: "lm_head", Operand: recipe.Grad, Scaling: recipe.Current}, "recipe fp8-head: lm_head: grad in e5m2 current: this gradient exists in chunks of tokens only"},
		{recipe.Row{Scope: "lm_head", DType: fp8.E2M1, Scaling: recipe.Current, Granularity: recipe.By(1, 16), Scale: recipe.NVFP4}, "this gradient exists in chunks of tokens only"},
		{recipe.Row{Scope: "lm_head", Operand: recipe.Grad, Scaling: recipe.Current, Granularity: recipe.PerRow}, ""},
	} {
		changed := r
		changed.Rows = append([]recipe.Row{c.row}, r.Rows...)
		_, err := nn.New(headConfig, changed, backend.NewVars())
		if c.want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, c.want)
		}
	}
}
