package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
	"octet/internal/npy"
	"octet/safetensors"
)

// A dump holds the tensors of the step, whatever checkpoint it begins with: codes, scales,
// and the values that they stand for.
func TestDump(t *testing.T) {
	text, dir := corpus(t, 20_000), t.TempDir()
	out := filepath.Join(dir, "run")
	succeed(t, trainArgs(text, out, 4, "checkpoint.every=2", "recipe=nvfp4-plain", "train.accumulate=2")...)
	metrics := read(t, out, "metrics.jsonl")
	const pattern = "layers.0.mlp.*.e2m1.*"
	first, again := filepath.Join(dir, "first.safetensors"), filepath.Join(dir, "again.safetensors")
	printed, stderr := succeed(t, "dump", out, "--step", "3", "--tensor", pattern, "--out", first, "--backend", "emu")
	require.Empty(t, stderr)
	require.Regexp(t, `^step 3, loss \d\.\d{6}, repeated from step 2: \d+ tensors, `, printed)
	_, stderr = succeed(t, "dump", out, "--step", "3", "--tensor", pattern, "--out", filepath.Join(dir, "moved"), "--backend", "emu:accum16")
	require.Contains(t, stderr, "the checkpoint was written by backend emu, ")
	require.NoError(t, os.RemoveAll(filepath.Join(out, "checkpoints")))
	printed, _ = succeed(t, "dump", out, "--step", "3", "--tensor", pattern, "--out", again)
	require.Contains(t, printed, "repeated from step 0: ")
	require.Equal(t, read(t, first), read(t, again))
	require.Equal(t, metrics, read(t, out, "metrics.jsonl"))

	f, err := safetensors.Open(first)
	require.NoError(t, err)
	defer f.Close()
	floats := func(name string, d fp8.DType) []float32 {
		x, ok := f.Tensor(name)
		require.True(t, ok, name)
		raw := make([]byte, x.Size)
		require.NoError(t, f.ReadInto(name, raw))
		n := 1
		for _, d := range x.Shape {
			n *= int(d)
		}
		list := make([]float32, n)
		d.Decode(list, raw)
		return list
	}
	const name = "model.layers.0.mlp.up_proj.weight.e2m1.16x16" // [48, 32] in blocks of 16 × 16
	codes, scales, outer := floats(name, fp8.E2M1), floats(name+".scale_inv", fp8.E4M3), floats(name+".outer", fp8.F32)
	for i, v := range floats(name+".value", fp8.F32) {
		require.InEpsilon(t, 1+codes[i]*scales[i/32/16*2+i%32/16]*outer[0], 1+v, 1e-6)
	}

	folder := filepath.Join(dir, "folder")
	succeed(t, "dump", out, "--step", "1", "--tensor", "layers.0.mlp.up_proj.grad.bf16", "--out", folder)
	a, err := npy.ReadFile(filepath.Join(folder, "layers.0.mlp.up_proj.grad.bf16.npy"))
	require.NoError(t, err)
	require.Equal(t, npy.Float32, a.DType)
	require.Equal(t, []int{64, 48}, a.Shape)

	for want, args := range map[string][]string{
		"; did you mean layers.0.mlp.":         {out, "--step", "1", "--tensor", "layers.0.mlp.up_prj.grad.bf16"},
		"not a valid glob pattern":             {out, "--step", "1", "--tensor", "["},
		"step 5: the run has the steps 1 to 4": {out, "--step", "5", "--tensor", "*"},
		"step 0: the run has the steps 1 to 4": {out, "--step", "0", "--tensor", "*"},
		"is not a run folder":                  {dir, "--step", "1", "--tensor", "*"},
		"unknown backend":                      {out, "--step", "1", "--tensor", "*", "--backend", "nowhere"},
	} {
		status, stdout, stderr := octet(append([]string{"dump", "--out", folder}, args...)...)
		require.Equal(t, exitInput, status, want)
		require.Empty(t, stdout)
		require.Contains(t, stderr, want)
		requireOneSentence(t, stderr)
	}
	require.NoError(t, os.WriteFile(text, []byte(goText(30_000)), 0o600))
	status, _, stderr := octet("dump", out, "--step", "1", "--tensor", "*", "--out", folder)
	require.Equal(t, exitInput, status)
	require.Contains(t, stderr, "corpus")
}
