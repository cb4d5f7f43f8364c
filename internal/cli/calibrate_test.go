package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/cost"
	"octet/train"
)

// bench --calibrate adds curves to a file, and keeps those of other benches.
func TestCalibrate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cpu.toml")
	step := append([]string{"bench", "step", "--recipe", "bf16,fp8-smooth", "--seconds", "0", "--threads", "1", "train.health_every=1", "--calibrate", file}, small...)
	_, stderr := succeed(t, step...)
	require.Regexp(t, `cpu\.toml: curves of \d+ kinds of ops, off the measured times by [\d.]+ % rms`, stderr)
	require.Regexp(t, `of the measured steps, the prediction of (bf16|fp8-smooth), \d × \d+ tokens, is furthest off: .* m?s, measured .* m?s, [+-]\d+\.\d %`, stderr)
	first, err := cost.ReadCalibration(file)
	require.NoError(t, err)
	require.Equal(t, "emu", first.Backend)
	require.Positive(t, first.Numbers["bandwidth"].Value)

	// The step that was measured has no op without a curve, and the prediction no number but
	// the measured ones.
	c := train.Default()
	c.Model.Layers, c.Model.Dim, c.Model.Heads, c.Model.KVHeads, c.Model.FFN, c.Data.Seq, c.Train.MicroBatch = 1, 32, 2, 1, 48, 48, 3
	c.Train.HealthEvery = 1
	spec, err := backend.SpecOf("emu")
	require.NoError(t, err)
	for _, c.Recipe = range []string{"bf16", "fp8-smooth"} {
		job, lowered, _, err := train.LargestJob(c, spec)
		require.NoError(t, err)
		m := cost.Devices().Local(first)
		p, err := m.Predict(cost.NewStep(job.Runs(lowered)...))
		require.NoError(t, err)
		require.Empty(t, p.Unmeasured)
		require.Empty(t, p.Used)
		require.Positive(t, p.Step)
	}

	require.Equal(t, runtime.NumCPU(), first.Processors)
	for _, ranks := range []string{"1", "2"}[:min(2, first.Processors)] {
		args := append([]string{"plan", "--json", "--calibration", file, "--tokens", "1M", "--assume", "link=5", "train.ranks=" + ranks, "train.health_every=1"}, small...)
		text, _ := succeed(t, append(args, "--recipe", "fp8-smooth")...)
		var plan planned
		require.NoError(t, json.Unmarshal([]byte(text), &plan))
		x := plan.Prediction
		require.Equal(t, "emu:"+ranks+"x1", x.Cluster)
		require.Positive(t, x.StepSeconds)
		require.Less(t, x.Band[0], x.StepSeconds, "curves have errors")
		require.InDelta(t, 1e6/x.TokensPerS/(1-x.Lost)/86400, x.Days, 1e-9)
	}
	for _, x := range []struct {
		want string
		args []string
	}{
		{"was measured on backend emu: omit --backend", []string{"--backend", "emu:h100"}},
		{"calibrate with --threads 1, or predict one rank", []string{fmt.Sprint("train.ranks=", first.Processors+1)}},
		{"measure it there by octet bench collectives --calibrate FILE", []string{"train.ranks=2"}},
	} {
		status, _, stderr := octet(slices.Concat([]string{"plan", "--calibration", file}, small, x.args)...)
		require.Equal(t, 2, status)
		require.Contains(t, strings.ReplaceAll(stderr, "\n", " "), x.want)
	}
	status, _, stderr := octet(append([]string{"plan", "--calibration", file, "--recipe", "mxfp8"}, small...)...)
	require.Equal(t, 2, status)
	require.Contains(t, strings.ReplaceAll(stderr, "\n", " "), `the calibration has no curve of "MatMul NT e4m3.1x32 e4m3.1x32`)
	status, _, stderr = octet(append([]string{"plan", "--calibration", file, "--cluster", "h100"}, small...)...)
	require.Equal(t, 2, status)
	require.Contains(t, stderr, "the calibration is of backend emu, ")

	succeed(t, "bench", "gemm", "16x32x48", "32x32x96", "--recipe", "fp8-delayed", "--seconds", "0", "--threads", "1", "--calibrate", file)
	second, err := cost.ReadCalibration(file)
	require.NoError(t, err)
	replaced := 0
	for key, x := range first.Curves {
		require.Contains(t, second.Curves, key)
		if second.Curves[key].Bench == "gemm" {
			require.Equal(t, "step", x.Bench)
			replaced++
		}
	}
	require.Equal(t, 3, replaced, "fprop, dgrad and wgrad in FP8")
	succeed(t, "bench", "quantize", "32x32", "--seconds", "0", "--threads", "1", "--calibrate", file)
	succeed(t, "bench", "optimizer", "4k", "--seconds", "0", "--threads", "1", "--calibrate", file)
	out, _ := succeed(t, "bench", "collectives", "--backend", "emu", "--ranks", "2", "--threads", "1", "--seconds", "0", "4k", "64k", "--calibrate", file)
	require.Len(t, strings.Split(out, "\n"), 1+2*3+1)
	last, err := cost.ReadCalibration(file)
	require.NoError(t, err)
	require.Greater(t, len(last.Curves), len(second.Curves))
	require.Positive(t, last.Numbers["link"].Value)
	require.Equal(t, 1.0, last.Numbers["link_share"].Value)
	require.True(t, slices.ContainsFunc(keysOf(last.Curves), func(k string) bool { return strings.HasPrefix(k, "Quantize fp16 > e5m2.stochastic") }))
}

func keysOf(curves map[string]cost.Curve) (list []string) {
	for k := range curves {
		list = append(list, k)
	}
	return list
}

func TestCalibrateRefuses(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	other := write("other.toml", "backend = \"emu\"\ndevice = \"3 threads, NEON\"\nthreads = 3\nprocessors = 4\n")
	for _, x := range []struct {
		want string
		args []string
	}{
		{"other.toml is of backend emu, 3 threads, NEON; this is backend emu, ", []string{"gemm", "16x16x16", "--seconds", "0", "--calibrate", other}},
		{"other.toml is of backend emu, 3 threads, NEON; this is backend emu, ", append([]string{"step", "--seconds", "0", "--calibrate", other}, small...)},
		{"threads is 3 and processors 2", []string{"gemm", "16x16x16", "--seconds", "0", "--calibrate", write("many.toml", "backend = \"emu\"\ndevice = \"a\"\nthreads = 3\nprocessors = 2\n")}},
		{"the folder " + filepath.Join(dir, "none") + " does not exist", []string{"gemm", "16x16x16", "--seconds", "0", "--calibrate", filepath.Join(dir, "none", "new.toml")}},
		{"is a folder: name a file", []string{"collectives", "--backend", "emu", "--ranks", "2", "--calibrate", dir}},
		{"unknown key speed", []string{"gemm", "16x16x16", "--seconds", "0", "--calibrate", write("bad.toml", "speed = 3")}},
		{"calibrate with train.ranks = 1", append([]string{"step", "--seconds", "0", "train.ranks=2", "--calibrate", filepath.Join(dir, "new.toml")}, small...)},
		{"--ranks 1: expected 2 to", []string{"collectives", "--backend", "emu", "--ranks", "1"}},
		{"--ranks 0: expected 2 to", []string{"collectives", "--backend", "emu"}},
		{`size "3" is not a number of bytes`, []string{"collectives", "--backend", "emu", "--ranks", "2", "3"}},
		{`unknown backend "emo"`, []string{"collectives", "--backend", "emo", "--ranks", "2"}},
	} {
		status, _, stderr := octet(append([]string{"bench"}, x.args...)...)
		require.Equal(t, 2, status, x.args)
		require.Contains(t, strings.ReplaceAll(stderr, "\n", " "), x.want)
		require.NoFileExists(t, filepath.Join(dir, "new.toml"))
	}
}
