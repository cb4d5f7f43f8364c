//go:build gaudi && cgo && linux

package gaudi

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
	"octet/infer"
	"octet/nn"
	"octet/recipe"
)

// noWeights are weights of 0.
type noWeights struct{ sizes map[string]int }

func (w noWeights) Param(name string) ([]float32, error) { return make([]float32, w.sizes[name]), nil }

func (noWeights) Scale(name string) ([]float32, error) {
	return nil, fmt.Errorf("%s: %w", name, nn.ErrNoTensor)
}

// gaudi runs a prefill with a cache in BF16, and refuses one in eight bits by name, whose scales are of
// blocks.
func TestCacheFormats(t *testing.T) {
	devices(t, "gaudi2", "1")
	c := small("bf16")
	require.NoError(t, c.Resolve())
	model := c.ModelConfig()
	r, err := recipe.Lookup("bf16")
	require.NoError(t, err)
	w := noWeights{map[string]int{}}
	m, err := nn.New(model, r, backend.NewVars())
	require.NoError(t, err)
	for _, p := range m.Params {
		w.sizes[p.Name] = p.Rows * p.Cols()
	}
	prefill := func(format fp8.DType) error {
		d, err := backend.Open("gaudi", backend.Options{})
		require.NoError(t, err)
		defer func() { require.NoError(t, d.Close()) }()
		p, err := infer.NewInferencePath(t.Context(), model, r, w, d, 32, format)
		if err == nil {
			_, err = p.Logits(t.Context(), make([]int32, 32), nil)
		}
		return err
	}
	require.NoError(t, prefill(0))
	err = prefill(fp8.E4M3)
	require.ErrorIs(t, err, backend.ErrUnsupported)
	require.ErrorContains(t, err, "Gaudi takes per-tensor scales only")
}
