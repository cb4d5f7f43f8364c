package cli

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// In BF16 the paths of one model differ by rounding alone; a KV cache and an export in FP8 by more, and
// the first op that differs is named.
func TestParity(t *testing.T) {
	text, dir := corpus(t, 20_000), filepath.Join(t.TempDir(), "run")
	succeed(t, trainArgs(text, dir, 20, "--recipe", "bf16")...)
	parity := func(args ...string) (r parityResult) {
		out, _ := succeed(t, append([]string{"parity", "--json", "--windows=3"}, args...)...)
		require.NoError(t, json.Unmarshal([]byte(out), &r))
		return r
	}
	plain := parity(dir)
	require.Less(t, float64(plain.KL), 1e-6)
	require.InDelta(t, 1, float64(plain.Largest.Ratio), 1e-3)
	require.Nil(t, plain.FirstLarge)
	require.EqualValues(t, plain.LossA, parity(dir, "--kv=e4m3").LossA)
	cache := parity(dir, "--kv=e4m3")
	require.Greater(t, float64(cache.KL), 10*float64(plain.KL))
	require.Contains(t, cache.First.Op, "layers.0.self_attn")
	require.Len(t, cache.Layers, 1)

	eight, exported := filepath.Join(t.TempDir(), "eight"), filepath.Join(t.TempDir(), "hf")
	succeed(t, trainArgs(text, eight, 20, "--recipe", "fp8-smooth")...)
	succeed(t, "export", eight, "--out", exported, "--format", "fp8")
	other := parity(eight, exported)
	require.Greater(t, float64(other.KL), 10*float64(plain.KL))
	require.NotNil(t, other.FirstLarge)
	require.Contains(t, other.Inference, "hf, fp32")

	for _, test := range []struct {
		want string
		args []string
	}{
		{"expected positive numbers", []string{dir, "--windows=0"}},
		{"--kv f16", []string{dir, "--kv=f16"}},
		{"no such run", []string{"none"}},
		{"no such run", []string{dir, "none"}},
	} {
		status, _, stderr := octet(append([]string{"parity"}, test.args...)...)
		require.Equal(t, exitInput, status)
		requireOneSentence(t, stderr)
		require.Contains(t, stderr, test.want)
	}
}
