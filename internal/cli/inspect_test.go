package cli

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/checkpoint"
	"octet/fp8"
	"octet/internal/inspect"
	"octet/recipe"
	"octet/train"
)

// handmade saves a checkpoint of two layers with problems: layer 1 has a weight that is not
// finite, and a gradient that grew.
func handmade(t *testing.T, dir string, step int) string {
	t.Helper()
	f32 := func(name string, x ...float32) checkpoint.Tensor {
		return checkpoint.Tensor{Name: name, DType: fp8.F32, Shape: []int{len(x)}, Data: checkpoint.Bytes(fp8.AppendFloats(nil, x...))}
	}
	var optimizer []checkpoint.Tensor
	cast := func(name string, scale float32, history ...float32) {
		optimizer = append(optimizer, f32(name+".amax_history", history...), f32(name+".scale", scale), f32(name+".scale_inv", 1/scale))
	}
	cast("layers.0.mlp.input.e4m3", 128, 3, 2.5, 0)
	cast("layers.1.mlp.input.e4m3", 64, 6, 5, 0)
	cast("layers.0.mlp.up_proj.grad.e5m2", 1<<20, 0.003, 0.002, 0)
	cast("layers.1.mlp.up_proj.grad.e5m2", 1<<20, 0.05, 0.002, 0)
	for _, name := range []string{"model.layers.0.mlp.up_proj.weight.m1", "model.layers.1.mlp.up_proj.weight.m1"} {
		optimizer = append(optimizer, f32(name+".scale_inv", 0.5),
			checkpoint.Tensor{Name: name, DType: fp8.E4M3, Shape: []int{1, 2}, Data: checkpoint.Bytes([]byte{0x38, 0x00})})
	}
	path, err := checkpoint.Save(dir, step, checkpoint.Contents{
		Config: train.HFConfig(train.Default()),
		Model: []checkpoint.Tensor{
			f32("model.layers.0.mlp.up_proj.weight", 0.5, -0.25),
			f32("model.layers.1.mlp.up_proj.weight", 0.75, float32(math.NaN())),
			f32("model.norm.weight", 1, 1, 0, 1),
			f32("\x1b[2J", 1),
		},
		Optimizer: optimizer,
		State:     train.State{Version: 2, Octet: "devel", Backend: "emu, avx2", Recipe: "fp8-delayed", Step: step, Seed: 1},
	})
	require.NoError(t, err)
	return path
}

const inspected = `written by  octet devel on emu, avx2
recipe      fp8-delayed, seed 1
step        2, epoch 0, row 0

tensor                                n  format      amax  zeros  not finite
·[2J                                  1  fp32 [1]    1     0.0%   0
model.layers.*.mlp.up_proj.weight     2  fp32 [2]    0.75  0.0%   1
model.norm.weight                     1  fp32 [4]    1     25.0%  0
model.layers.*.mlp.up_proj.weight.m1  2  e4m3 [1 2]  0.5   50.0%  0

cast                            n  scale       filled  newest amax  history        updates
layers.*.mlp.input.e4m3         2  2^6 to 2^7  85.7%   6            2.5 to 6       2 of 3
layers.*.mlp.up_proj.grad.e5m2  2  2^20        91.4%   0.05         0.002 to 0.05  2 of 3

look at: model.layers.1.mlp.up_proj.weight: 1 of 2 values are not finite
look at: layers.1.mlp.up_proj.grad.e5m2: its amax grew from at most 0.002 to 0.05 in one update
`

func TestInspect(t *testing.T) {
	path := handmade(t, t.TempDir(), 2)
	out, stderr := succeed(t, "inspect", path)
	require.Empty(t, stderr)
	require.Equal(t, "checkpoint  "+path+"\n"+inspected, out)

	all, _ := succeed(t, "inspect", "--all", path)
	require.Contains(t, all, "\nmodel.layers.1.mlp.up_proj.weight     1  fp32 [2]    0.75  0.0%   1\n")
	require.Contains(t, all, "\nlayers.0.mlp.input.e4m3         1  2^7    85.7%   3            2.5 to 3        2 of 3\n")

	out, _ = succeed(t, "inspect", "--json", path)
	require.Equal(t, 1, strings.Count(out, "\n"))
	var r struct {
		State   train.State
		Tensors []struct{ File, Name string }
		Casts   []struct {
			Name  string
			Scale float64
		}
		Health []string
	}
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	require.Equal(t, 2, r.State.Step)
	require.Len(t, r.Tensors, 4+4*3+2*2)
	require.Len(t, r.Casts, 4)
	require.Equal(t, 128., r.Casts[0].Scale)
	require.Len(t, r.Health, 2)

	unfinished := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(unfinished, "state.json"), []byte("{}"), 0o600))
	for want, args := range map[string][]string{
		"no config.json: not the folder of a model":       {t.TempDir()},
		"there is no MANIFEST.json in the same folder":    {unfinished},
		"expected \"<run, ch":                             {},
		"nowhere: no such run or checkpoint folder":       {"nowhere"},
		"MANIFEST.json: no such run or checkpoint folder": {filepath.Join(path, "MANIFEST.json")},
	} {
		status, out, stderr := octet(append([]string{"inspect"}, args...)...)
		require.Equal(t, exitInput, status)
		require.Empty(t, out)
		require.Contains(t, stderr, want)
		requireOneSentence(t, stderr)
	}
}

// In a healthy run of any recipe, inspect finds nothing wrong.
func TestInspectFindsNothingWrong(t *testing.T) {
	text := corpus(t, 20_000)
	for _, name := range recipe.Names() {
		dir := filepath.Join(t.TempDir(), name)
		succeed(t, trainArgs(text, dir, 3, "--recipe", name)...)
		out, _ := succeed(t, "inspect", dir)
		require.True(t, strings.HasSuffix(out, "\n\nnothing looks wrong\n"), "%s\n%s", name, out)
		require.Contains(t, out, "\nrecipe      "+name+", seed 1\nstep        3, epoch 0, row 6\n")
	}
}

func TestDiff(t *testing.T) {
	text := corpus(t, 20_000)
	home := t.TempDir()
	a, same, longer, other := filepath.Join(home, "a"), filepath.Join(home, "same"), filepath.Join(home, "longer"), filepath.Join(home, "other")
	every := "checkpoint.every=2"
	succeed(t, trainArgs(text, a, 4, every)...)
	succeed(t, trainArgs(text, same, 4, every, "--threads", "1")...)
	succeed(t, trainArgs(text, longer, 4, every)...)
	succeed(t, "train", "--resume", "--out", longer, "--steps", "5")
	succeed(t, trainArgs(text, other, 4, every, "--seed", "2")...)

	out, stderr := succeed(t, "diff", a, same)
	require.Empty(t, stderr)
	require.Regexp(t, `^A           \S*a\nB           \S*same\nmetrics     all 4 steps are the same\ncheckpoint  of step 4: all \d+ tensors are the same\n$`, out)

	differ := func(b string, args ...string) string {
		t.Helper()
		status, out, stderr := octet(append([]string{"diff", a, b}, args...)...)
		require.Equal(t, exitFailed, status)
		require.Empty(t, stderr)
		return out
	}
	require.Regexp(t, `\nmetrics     the first 4 steps are the same\nlength      A has 4 steps, B has 5\ncheckpoint  of step 4: all \d+ tensors are the same\n$`, differ(longer))
	out = differ(other)
	require.Regexp(t, `\nmetrics     the first step differs: loss is [\d.]+ in A, [\d.]+ in B\n`, out)
	require.Regexp(t, `\ncheckpoint  of step 4: \d+ of \d+ tensors differ, the first is \S+\nstate.json  seed is 1 in A, 2 in B\nthe most    \S+, \S+ \[.*\]: \d+ elements differ, by \S+ at most, \|A-B\|/\|A\| = \S+\n$`, out)
	var d inspect.Difference
	require.NoError(t, json.Unmarshal([]byte(differ(other, "--json")), &d))
	require.False(t, d.Equal())
	require.Equal(t, 1, d.Metrics.First.Step)
	require.Equal(t, 4, d.Checkpoints.Step)

	// Without checkpoints in one run, only the metrics are compared.
	require.NoError(t, os.RemoveAll(filepath.Join(same, "checkpoints")))
	out, _ = succeed(t, "diff", a, same)
	require.True(t, strings.HasSuffix(out, "\ncheckpoint  no step has an intact one in both runs\n"), out)

	for want, args := range map[string][]string{
		"is not a run folder: it has no metrics.jsonl": {a, home},
		"expected \"<run b>\"":                         {a},
	} {
		status, out, stderr := octet(append([]string{"diff"}, args...)...)
		require.Equal(t, exitInput, status)
		require.Empty(t, out)
		requireOneSentence(t, stderr)
		require.Contains(t, stderr, want)
	}
}
