package cli

import (
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// In FP32 an exported model has the loss of the trained one, with or without folded scales,
// up to the order in which batches of different sizes are summed.
func TestExport(t *testing.T) {
	text := corpus(t, 20_000)
	loss := func(args ...string) float64 {
		t.Helper()
		out, _ := succeed(t, append([]string{"eval", "--json", "--recipe", "fp32", "--data", text, "--seq", "32"}, args...)...)
		var e evaluated
		require.NoError(t, json.Unmarshal([]byte(out), &e))
		return float64(e.Loss)
	}
	for _, recipe := range []string{"fp8-smooth", "fp8-paper", "fp8-smooth-token", "fp8-delayed", "bf16"} {
		dir := filepath.Join(t.TempDir(), "run")
		succeed(t, trainArgs(text, dir, 6, "--recipe", recipe)...)
		out := filepath.Join(t.TempDir(), "out")
		printed, stderr := succeed(t, "export", dir, "--out", out)
		require.Empty(t, stderr)
		require.Contains(t, printed, out)
		folds := recipe == "fp8-smooth" || recipe == "fp8-paper"
		if folds {
			require.Contains(t, printed, "folded into up_proj and down_proj")
			require.NotEqual(t, read(t, dir, "checkpoints", "step-00000006", "model.safetensors"), read(t, out, "model.safetensors"))
		} else {
			require.Contains(t, printed, "nothing to fold")
		}
		require.InEpsilon(t, loss(dir), loss(out), 1e-7, recipe)
		inspected, _ := succeed(t, "inspect", out)
		require.Regexp(t, `^weights     `+out+`\n\ntensor .*\nlm_head.weight  [^$]*\n\nnothing looks wrong\n$`, inspected)
		inspected, _ = succeed(t, "inspect", "--json", out)
		require.NotContains(t, inspected, `"state"`)

		status, _, stderr := octet("export", dir, "--out", out)
		require.Equal(t, exitInput, status)
		require.Contains(t, stderr, "exists already")
		eight := filepath.Join(t.TempDir(), "eight")
		status, _, stderr = octet("export", dir, "--out", eight, "--format", "fp8")
		if recipe == "bf16" {
			require.Equal(t, exitInput, status)
			requireOneSentence(t, stderr)
			require.Contains(t, stderr, "which only a run in FP8 stores")
			require.NoDirExists(t, eight)
		} else if recipe == "fp8-smooth-token" {
			require.Equal(t, exitInput, status)
			requireOneSentence(t, stderr)
			require.Contains(t, stderr, "scales per token")
			require.NoDirExists(t, eight)
		} else {
			require.Zero(t, status, stderr)
			// Evaluation reads the rounded weights; it does not round their inputs.
			require.InEpsilon(t, loss(dir), loss(eight), 0.01, recipe)
			require.NotEqual(t, loss(dir), loss(eight))
			inspected, _ = succeed(t, "inspect", eight)
			require.Regexp(t, `\nmodel.layers.\*.mlp.down_proj.weight +1  e4m3 \[32 48\] +0\.\d+ `, inspected)
			require.NotContains(t, inspected, "scale")
			again := filepath.Join(t.TempDir(), "again")
			succeed(t, "export", eight, "--out", again)
			require.Equal(t, loss(eight), loss(again))
			inspected, _ = succeed(t, "inspect", "--all", "--json", again)
			require.NotContains(t, inspected, "_scale")
			succeed(t, trainArgs(text, filepath.Join(t.TempDir(), "on"), 1, "model.init="+eight)...)
		}
	}
}

// A long export or inspection shows its progress on standard error.
func TestExportAndInspectShowTheirProgress(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	succeed(t, trainArgs(corpus(t, 20_000), dir, 1)...)
	defer func(d time.Duration) { progressAfter = d }(progressAfter)
	progressAfter = 0
	_, stderr := succeed(t, "export", dir, "--out", filepath.Join(t.TempDir(), "out"))
	require.Regexp(t, `(?s)^\d+ k?B of \d+ kB .*\n(\d+ kB) of (\d+ kB)  [\d.]+ [kMG]?B/s  ETA 0:00\n$`, stderr)
	_, stderr = succeed(t, "inspect", dir)
	require.Regexp(t, `(?s)^[\d.]+ k?B of [\d.]+ kB .*ETA 0:00\n$`, stderr)
}
