package cli

import (
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A schedule of recipes is printed, followed and saved; a run that is killed around a change
// of recipe ends like one that was not.
func TestSchedule(t *testing.T) {
	text := corpus(t, 20_000)
	uninterrupted, dir := filepath.Join(t.TempDir(), "uninterrupted"), filepath.Join(t.TempDir(), "killed")
	more := []string{
		"--recipe", "bf16", `precision.schedule=[{step=60, recipe="fp8-smooth"}, {step=90, recipe="bf16"}]`,
		"checkpoint.every=30", "checkpoint.keep_last=9", "data.val_bytes=500",
	}
	_, stderr := succeed(t, trainArgs(text, uninterrupted, 120, more...)...)
	require.Contains(t, stderr, "\nthen fp8-smooth from step 61 on\nthen bf16 from step 91 on\n")
	require.Contains(t, stderr, "\nstep 61: the recipe is now fp8-smooth\n")
	require.Contains(t, stderr, "\nstep 91: the recipe is now bf16\n")
	require.Contains(t, read(t, uninterrupted, "config.toml"), "[[precision.schedule]]")
	// A checkpoint is evaluated under the recipe that wrote it.
	for step, recipe := range map[string]string{"30": "bf16", "60": "bf16", "90": "fp8-smooth"} {
		path := filepath.Join(uninterrupted, "checkpoints", "step-000000"+step)
		require.Contains(t, read(t, path, "state.json"), `"recipe": "`+recipe+`"`)
		stdout, _ := succeed(t, "eval", path, "--json")
		require.Contains(t, stdout, `"recipe":"`+recipe+`"`)
	}

	args := trainArgs(text, dir, 120, more...)
	for _, at := range []int{58, 88} {
		cmd, _ := start(t, args)
		waitFor(t, func() bool { return steps(dir) >= at })
		time.Sleep(time.Duration(rand.IntN(5000)) * time.Microsecond)
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		t.Logf("killed at step %d", steps(dir))
		args = []string{"train", "--resume", "--out", dir}
	}
	succeed(t, args...)
	sameRun(t, uninterrupted, dir)
}

// For several recipes plan shows the one that needs the most memory.
func TestPlanOfASchedule(t *testing.T) {
	plan := func(args ...string) string { // for a model whose tensors need more memory than its ops
		layer := "model.layers=1 model.dim=64 model.heads=2 model.kv_heads=1 model.ffn=96 data.seq=64 train.micro_batch=8"
		stdout, _ := succeed(t, slices.Concat([]string{"plan"}, strings.Fields(layer), args)...)
		return stdout
	}
	alone := plan("--recipe", "fp32")
	for _, schedule := range [][2]string{{"bf16", "fp32"}, {"fp32", "bf16"}} {
		got := plan("--recipe", schedule[0], `precision.schedule=[{step=5, recipe="`+schedule[1]+`"}]`)
		heading := "schedule of recipes: " + schedule[0] + ", after step 5 " + schedule[1] + "\nthe recipe that needs the most memory:\n\n"
		require.Equal(t, heading+alone, got)
		require.Contains(t, plan("--json", "--recipe", schedule[0], `precision.schedule=[{step=5, recipe="`+schedule[1]+`"}]`), `"recipe": "fp32",
  "schedule": [
    {
      "step": 0,
      "recipe": "`+schedule[0]+`"
    },
    {
      "step": 5,
      "recipe": "`+schedule[1]+`"
    }
  ],`)
	}
}
