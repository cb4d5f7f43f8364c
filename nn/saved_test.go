package nn_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
)

// savedConfig has rows of more than one block of 16, the last one short.
var savedConfig = nn.Config{
	Layers: 2, Dim: 32, Heads: 2, KVHeads: 2, FFN: 40, Vocab: 19,
	Activation: nn.SwiGLU, RopeTheta: 100, NormEps: 1e-5, InitStd: 0.02,
}

func withActivations(t *testing.T, g recipe.Granularity) recipe.Recipe {
	r, err := recipe.Lookup("fp32")
	require.NoError(t, err)
	r.Activations = recipe.Activations{DType: fp8.E4M3, Granularity: g}
	return r
}

// rounded returns x as E4M3 holds it with a scale for each 16 elements of a row.
func rounded(x []float64, cols int) []float64 {
	out := make([]float64, 0, len(x))
	for row := range slices.Chunk(x, cols) {
		for block := range slices.Chunk(row, 16) {
			amax := float32(0)
			for _, v := range block {
				amax = max(amax, float32(math.Abs(v)))
			}
			scale := 448 / amax
			for _, v := range block {
				code := fp8.E4M3.Nearest(float32(v)*scale, fp8.Saturate)
				out = append(out, float64(fp8.E4M3.Float32(code)*(1/scale)))
			}
		}
	}
	return out
}

// Norms and SwiGLU read the rounded values in forward and backward, and the residual stream
// the others. The gradient ops' own equations, at these values, give the gradient of the
// function in which a cast has the derivative 1.
func TestActivationsAreRoundedAlike(t *testing.T) {
	lp := newRecipeProblem(t, savedConfig, 8, withActivations(t, recipe.By(1, 16)))
	lp.value()
	source := map[*backend.Tensor]*backend.Tensor{} // what the dequantized tensors were cast from
	read := map[*backend.Tensor]int{}
	for _, n := range lp.program.Nodes() {
		switch o := n.Op.(type) {
		case *backend.Quantize:
			for _, c := range o.Out {
				source[c.Out] = o.X
			}
		case *backend.RMSNorm:
			read[o.X]++
		case *backend.RMSNormGrad:
			read[o.X]++
		case *backend.SwiGLU:
			read[o.Up]++
			read[o.Gate]++
		case *backend.SwiGLUGrad:
			read[o.Up]++
			read[o.Gate]++
		case *backend.MatMul:
			require.Nil(t, source[o.Residual], "%s: the residual stream stays in the compute format", n.Path())
		}
	}
	require.Len(t, read, 2*(2*2+2*2)/2*2+2, "x of 5 norms, up and gate of 2 layers, each in forward and backward")
	for x := range read {
		codes := source[x]
		require.NotNil(t, codes, x.Name)
		require.Equal(t, fp8.E4M3, codes.DType)
		wide := source[codes]
		require.Less(t, relative(rounded(lp.values(wide), wide.Cols()), lp.values(x)), 1e-6, x.Name)
	}
}

// One token is 30,000 times as large as the others. With one scale for 1x16 elements, the
// median error of a token in the input of the first norm is that of E4M3. With one scale for
// the tensor, the control, the other tokens are near the smallest values of E4M3.
func TestOutlierTokenOfActivations(t *testing.T) {
	c := savedConfig
	c.Layers, c.Dim, c.Vocab = 1, 128, 64
	for name, want := range map[string]struct {
		granularity recipe.Granularity
		low, high   float64
	}{"1x16": {recipe.By(1, 16), 0.02, 0.03}, "tensor": {recipe.PerTensor, 0.07, 0.25}} {
		lp := newRecipeProblem(t, c, 24, withActivations(t, want.granularity))
		outlier := int(lp.values(lp.tokens)[5])
		for _, p := range lp.model.Params {
			if p.Embedding {
				x := lp.values(p.Master)
				for i := range c.Dim {
					x[outlier*c.Dim+i] *= 3e4
				}
				require.NoError(t, lp.dev.SetValues(p.Master, x))
			}
		}
		lp.value()
		var norm *backend.Tensor
		var x, rounded []float64
		for _, n := range lp.program.Nodes() {
			switch o := n.Op.(type) {
			case *backend.Embed:
				x = lp.values(o.Out[0].Out)
			case *backend.RMSNorm:
				if norm == nil {
					norm, rounded = o.X, lp.values(o.X)
				}
			}
		}
		var errors []float64
		for i := 0; i < len(x); i += c.Dim {
			errors = append(errors, relative(x[i:i+c.Dim], rounded[i:i+c.Dim]))
		}
		slices.Sort(errors)
		median := errors[len(errors)/2]
		t.Logf("%-7s median relative error of a token %.4f, largest %.4f", name, median, errors[len(errors)-1])
		require.Greater(t, median, want.low, name)
		require.Less(t, median, want.high, name)
	}
}

// The stored copies have E4M3 codes and scales; without Recipe.Activations nothing is stored
// beside the compute format.
func TestSavedCopies(t *testing.T) {
	for name, want := range map[string]int{"coat": 3 + 2, "fp8-current": 0, "bf16": 0} {
		m, err := model(t, name)
		require.NoError(t, err)
		n := 0
		for _, out := range quantized(micro(t, m, nn.Train)) {
			if out.Block == (backend.ScaleBlock{Rows: 1, Cols: 16}) {
				require.Equal(t, fp8.E4M3, out.DType)
				require.Equal(t, 1.25, float64(out.Bytes()+out.Scale.Bytes())/float64(out.Elems()), "bytes of an element")
				n++
			}
		}
		require.Equal(t, want, n, name)
	}
}
