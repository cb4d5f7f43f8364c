// Package ptq quantizes the linear layers of a trained Llama model, without training: 8-bit
// weights and inputs (W8A8), or integer weights of up to 4 bits alone (W4A16). [Quantize]
// returns a model that package infer evaluates and package export writes.
//
// The head, the embedding and the norms stay in BF16. Sources: arXiv 2411.02355 for the
// schemes; SmoothQuant (arXiv 2211.10438); GPTQ (arXiv 2210.17323).
package ptq

import (
	"fmt"
	"slices"
	"strings"

	"octet/fp8"
	"octet/internal/spelling"
	"octet/recipe"
)

// Scheme says how the weights and inputs of linear layers are quantized.
type Scheme struct {
	Name string
	// Input is the format of W8A8, else Invalid: each row of a weight, and each token of an
	// input when it comes, has the scale_inv amax/max of the format.
	Input fp8.DType
	// Bits and Group are those of integer weights alone: the codes are -2^(Bits-1) to
	// 2^(Bits-1)-1, and Group elements of a row share a scale. The last group of a row may
	// be shorter.
	Bits, Group int
	// GPTQ rounds columns in order and spreads the error of each over the later ones.
	// Otherwise each element is rounded to nearest.
	GPTQ bool
	// Smooth is SmoothQuant's exponent alpha; 0: none.
	Smooth float64
}

// schemes are the known schemes, a ladder from 8 to 2 bits. Runtimes read no groups that
// do not divide a row, so that narrow models need shorter groups.
var schemes = []Scheme{
	{Name: "w8a8-fp8", Input: fp8.E4M3},
	{Name: "w8a8-int8", Input: fp8.INT8},
	{Name: "w8a8-int8-smooth", Input: fp8.INT8, Smooth: 0.5},
	{Name: "w4a16-g128", Bits: 4, Group: 128, GPTQ: true},
	{Name: "w4a16-g128-rtn", Bits: 4, Group: 128},
	{Name: "w4a16-g32", Bits: 4, Group: 32, GPTQ: true},
	{Name: "w4a16-g32-rtn", Bits: 4, Group: 32},
	{Name: "w3a16-g128", Bits: 3, Group: 128, GPTQ: true},
	{Name: "w3a16-g128-rtn", Bits: 3, Group: 128},
	{Name: "w2a16-g128", Bits: 2, Group: 128, GPTQ: true},
	{Name: "w2a16-g128-rtn", Bits: 2, Group: 128},
}

// Names lists the schemes, from more to fewer bits.
func Names() []string {
	names := make([]string, len(schemes))
	for i, s := range schemes {
		names[i] = s.Name
	}
	return names
}

// Lookup returns a scheme by name. The error for an unknown name lists all.
func Lookup(name string) (Scheme, error) {
	for _, s := range schemes {
		if s.Name == name {
			return s, nil
		}
	}
	return Scheme{}, fmt.Errorf("unknown quantization %q%s (known: %s)", name, spelling.DidYouMean(name, Names()), strings.Join(Names(), ", "))
}

// Observes reports whether Quantize computes the model on tokens.
func (s Scheme) Observes() bool { return s.GPTQ || s.Smooth > 0 }

// bits returns the bits of an element of a row of cols weights, scales included.
func (s Scheme) bits(cols int) float64 {
	if s.Bits == 0 {
		return 8 + 32/float64(cols)
	}
	return float64(s.Bits) + 16*float64(ceilDiv(cols, s.Group))/float64(cols)
}

// Recipe returns the recipe that computes a model of this scheme: plain, which quantizes
// nothing, or for W8A8 one with the scheme's name and rows for the forward GEMM.
func (s Scheme) Recipe(plain recipe.Recipe) (recipe.Recipe, error) {
	if slices.ContainsFunc(plain.Rows, func(r recipe.Row) bool { return r.DType != fp8.Invalid }) {
		return plain, fmt.Errorf("recipe %s has formats of its own: a quantized model needs fp32, bf16 or fp16 for the rest", plain.Name)
	}
	if s.Input != fp8.Invalid {
		plain.Name = s.Name
		plain.Rows = []recipe.Row{
			{Scope: "lm_head", DType: plain.Compute},
			{GEMM: recipe.Fprop, DType: s.Input, Scaling: recipe.Current, Granularity: recipe.PerRow, Scale: recipe.Exact},
		}
	}
	return plain, nil
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
