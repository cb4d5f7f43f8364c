package nn_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/nn"
	"octet/recipe"
)

func smallModel(t *testing.T, recipeName string, history int) *nn.Model {
	t.Helper()
	r, err := recipe.Lookup(recipeName)
	require.NoError(t, err)
	r.History = history
	m, err := nn.New(nn.Config{
		Layers: 2, Dim: 32, Heads: 2, KVHeads: 1, FFN: 48, Vocab: 300, Activation: nn.SmoothSwiGLU,
		RopeTheta: 1e4, NormEps: 1e-5, InitStd: 0.02,
	}, r, backend.NewVars())
	require.NoError(t, err)
	return m
}

// Pack is the inverse of Unpack; every element has one name, derived from its
// module's path.
func TestPackedStateHasNames(t *testing.T) {
	m := smallModel(t, "fp8-smooth", 4)
	names := map[string]bool{}
	for _, packed := range m.Packed() {
		values := make([]float32, packed.Elems())
		for i := range values {
			values[i] = float32(i)
		}
		parts := map[string][]float32{}
		total := 0
		m.Unpack(packed, values, func(name string, shape []int, part []float32) {
			require.False(t, names[name], name)
			names[name] = true
			elems := 1
			for _, d := range shape {
				elems *= d
			}
			require.Len(t, part, elems)
			parts[name] = part
			total += elems
		})
		require.Equal(t, packed.Elems(), total, packed.Name)
		back, err := m.Pack(packed, func(name string) ([]float32, error) { return parts[name], nil })
		require.NoError(t, err)
		require.Equal(t, values, back)
	}
	for _, want := range []string{
		"layers.1.self_attn.input.e4m3.amax_history", "layers.0.mlp.down_proj.grad.e5m2.scale",
		"layers.1.self_attn.q_proj.weight.e4m3.scale_inv", "layers.0.mlp.hidden.channel_max_history",
	} {
		require.True(t, names[want], want)
	}
}

// A history with another window is truncated after the newest updates, or padded with zeros.
func TestHistoryWindowMayChange(t *testing.T) {
	long, short := smallModel(t, "fp8-delayed", 40), smallModel(t, "fp8-delayed", 2)
	values := make([]float32, long.Scales.History.Elems())
	for i := range values {
		values[i] = float32(i + 1)
	}
	saved := map[string][]float32{}
	long.Unpack(long.Scales.History, values, func(name string, _ []int, part []float32) { saved[name] = part })
	get := func(name string) ([]float32, error) { return saved[name], nil }
	cut, err := short.Pack(short.Scales.History, get)
	require.NoError(t, err)
	require.Equal(t, values[:len(cut)], cut)
	short.Unpack(short.Scales.History, cut, func(name string, _ []int, part []float32) { saved[name] = part })
	filled, err := long.Pack(long.Scales.History, get)
	require.NoError(t, err)
	require.Equal(t, values[:len(cut)], filled[:len(cut)])
	require.Zero(t, filled[len(cut)])
	require.Equal(t, 16, short.Scales.History.Rows(), "frozen scales need 16 updates, whatever the recipe's history")
	_, err = long.Pack(long.Scales.History, func(string) ([]float32, error) { return nil, fmt.Errorf("lost") })
	require.ErrorContains(t, err, "lost")
}

// A missing record is converted from the history of another format. A record that exists
// but cannot be read is an error, whatever other histories there are.
func TestOnlyMissingRecordsAreConverted(t *testing.T) {
	m := smallModel(t, "fp8-delayed", 2)
	const input = "layers.0.self_attn.input."
	lost := errors.New("input/output error")
	pack := func(to *backend.Tensor, stored map[string]error) ([]float32, error) {
		x, err := m.Pack(to, func(name string) ([]float32, error) {
			part, ok := strings.CutPrefix(name, input)
			if !ok {
				return nil, nil
			}
			err, ok := stored[part]
			switch {
			case !ok:
				return nil, fmt.Errorf("%w %q", nn.ErrNoTensor, name)
			case err != nil:
				return nil, err
			}
			return []float32{7, 5}, nil
		})
		if err != nil {
			return nil, err
		}
		var got []float32
		m.Unpack(to, x, func(name string, _ []int, part []float32) {
			if strings.HasPrefix(name, input+"e4m3.") {
				got = part
			}
		})
		return got, nil
	}
	const scale, history, other = "e4m3.scale", "e4m3.amax_history", "e5m2.amax_history"
	for _, test := range []struct {
		to     *backend.Tensor
		stored map[string]error
		want   []float32 // nil: Pack returns the read error
	}{
		{m.Scales.History, map[string]error{other: nil}, []float32{7, 5}},
		{m.Scales.History, map[string]error{history: lost, other: nil}, nil},
		{m.Scales.History, map[string]error{other: lost}, nil},
		{m.Scales.Scale, map[string]error{scale: nil, history: lost}, []float32{7}},
		{m.Scales.Scale, map[string]error{history: nil}, []float32{64}}, // 448/7
		{m.Scales.Scale, map[string]error{scale: lost, history: nil}, nil},
		{m.Scales.Scale, map[string]error{history: lost, other: nil}, nil},
	} {
		got, err := pack(test.to, test.stored)
		if test.want == nil {
			require.ErrorIs(t, err, lost, "%s of %v", test.to.Name, test.stored)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, test.want, got[:len(test.want)], "%s of %v", test.to.Name, test.stored)
	}
	for _, to := range []*backend.Tensor{m.Scales.Scale, m.Scales.History} {
		_, err := pack(to, nil)
		require.ErrorIs(t, err, nn.ErrNoTensor)
	}
}

// All readers of one tensor share its record.
func TestSharedInputsHaveOneRecord(t *testing.T) {
	m := smallModel(t, "fp8-smooth", 16)
	count := map[string]int{}
	scales := m.Scales.Scale
	m.Unpack(scales, make([]float32, scales.Elems()), func(name string, _ []int, _ []float32) {
		count[strings.TrimSuffix(name, ".scale")]++
	})
	for name, n := range count {
		require.Equal(t, 1, n, name)
	}
	// In every layer: the inputs of attention, o_proj, MLP and down_proj, seven
	// gradients, and six weights: Smooth-SwiGLU's w3 has a current scale and no
	// record.
	require.Len(t, count, 2*(4+7+6))
	require.Contains(t, count, "layers.0.self_attn.input.e4m3")
	require.NotContains(t, count, "layers.0.self_attn.q_proj.input.e4m3")
}

func TestInitialValuesFollowTheName(t *testing.T) {
	a, b := smallModel(t, "bf16", 16), smallModel(t, "fp8-smooth", 16)
	for i, p := range a.Params {
		require.Equal(t, p.Name, b.Params[i].Name)
		require.Equal(t, p.Init(1), b.Params[i].Init(1), "%s: initial values do not depend on the recipe", p.Name)
		if p.Matrix {
			require.NotEqual(t, p.Init(1), p.Init(2), p.Name)
		} else {
			require.Equal(t, slices.Repeat([]float32{1}, p.Elems()), p.Init(1), p.Name)
		}
	}
	embed := a.Params[0]
	x := embed.Init(1)
	require.Equal(t, 304*32, len(x), "the vocabulary is padded to a multiple of 16")
	for _, v := range x[300*32:] {
		require.Zero(t, v)
	}
}
