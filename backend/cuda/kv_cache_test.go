//go:build cuda && cgo && linux

package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
	"octet/infer"
	"octet/nn"
	"octet/recipe"
)

// randomWeights are weights of any model, the same for a name and a shape.
type randomWeights struct{ sizes map[string]int }

func (w randomWeights) Param(name string) ([]float32, error) {
	rng := rand.New(rand.NewPCG(fp8.NameKey(name), 0))
	x := make([]float32, w.sizes[name])
	for i := range x {
		x[i] = float32(rng.NormFloat64()) / 8
	}
	return x, nil
}

func (randomWeights) Scale(name string) ([]float32, error) {
	return nil, fmt.Errorf("%s: %w", name, nn.ErrNoTensor)
}

// A prefill whose keys and values are in a cache, in BF16 and in eight bits, agrees with emu; the
// formats differ.
func TestCacheFormats(t *testing.T) {
	standIns(t)
	c := small("bf16")
	require.NoError(t, c.Resolve())
	model := c.ModelConfig()
	r, err := recipe.Lookup("bf16")
	require.NoError(t, err)
	w := randomWeights{map[string]int{}}
	m, err := nn.New(model, r, backend.NewVars())
	require.NoError(t, err)
	for _, p := range m.Params {
		w.sizes[p.Name] = p.Rows * p.Cols()
	}
	const seq = 32
	ids := make([]int32, seq)
	for i := range ids {
		ids[i] = int32(i * 7 % model.Vocab)
	}
	logits := func(device string, format fp8.DType) (all []float64) {
		d, err := backend.Open(device, backend.Options{})
		require.NoError(t, err)
		defer func() { require.NoError(t, d.Close()) }()
		p, err := infer.NewInferencePath(t.Context(), model, r, w, d, seq, format)
		require.NoError(t, err)
		rows, err := p.Logits(t.Context(), ids, nil)
		require.NoError(t, err)
		for _, row := range rows {
			for _, x := range row {
				all = append(all, float64(x))
			}
		}
		return all
	}
	distance := func(a, b []float64) float64 {
		diff, norm := 0.0, 0.0
		for i := range a {
			diff += (a[i] - b[i]) * (a[i] - b[i])
			norm += a[i] * a[i]
		}
		return math.Sqrt(diff / norm)
	}
	plain := logits("cuda", 0)
	require.Less(t, distance(logits("emu", 0), plain), 0.01)
	for _, format := range []fp8.DType{fp8.E4M3, fp8.E5M2} {
		cached := logits("cuda", format)
		effect := distance(plain, cached)
		require.Greater(t, effect, 0.002, format)
		require.Less(t, distance(logits("emu", format), cached), effect/2, format)
	}
}
