package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// The same command line starts a run, resumes it, and finds it done.
func TestResumeAuto(t *testing.T) {
	text := corpus(t, 20_000)
	whole, dir := filepath.Join(t.TempDir(), "whole"), filepath.Join(t.TempDir(), "run")
	config := []string{"checkpoint.every=3", "optimizer.lr=0.001"}
	succeed(t, trainArgs(text, whole, 6, config...)...)

	auto := append(trainArgs(text, dir, 6, config...), "--resume=auto")
	cmd, _ := start(t, auto, killAt+"="+failpoint{When: "before", Name: "write:metrics.jsonl", N: 2}.String())
	require.Error(t, cmd.Wait())
	require.NoDirExists(t, filepath.Join(dir, "checkpoints"), "it was killed before the first checkpoint")
	cmd, stderr := start(t, auto, killAt+"="+failpoint{When: "half", Name: "write:.step-00000006/optimizer.safetensors", N: 1}.String())
	require.Error(t, cmd.Wait())
	require.Contains(t, stderr.String(), "the run has no checkpoint yet: starting at step 0")
	_, errs := succeed(t, auto...)
	require.Contains(t, errs, "resuming after step 3\n")
	sameRun(t, whole, dir)
	out, _ := succeed(t, auto...)
	require.Contains(t, out, "nothing to do")

	// The configuration file of the run works too, and the run may become longer.
	succeed(t, "train", filepath.Join(whole, "config.toml"), "--out", dir, "--resume=auto", "--steps", "7")
	require.Equal(t, 7, steps(dir))

	// Given keys must have the run's values; other keys may have been edited in config.toml.
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"optimizer.lr=0.002"}, "optimizer.lr is 0.001 in the run, 0.002 given"},
		{[]string{"--recipe", "bf16", "--seed", "9"}, `recipe is "fp8-smooth" in the run, "bf16" given, seed is 1 in the run, 9 given`},
		{[]string{"--data", filepath.Join(t.TempDir(), "other.txt")}, "data.paths; name another folder"},
		{[]string{"--steps", "5"}, "the run has done 7 already"},
	} {
		before := read(t, dir, "config.toml")
		status, _, stderr := octet(append([]string{"train", "--out", dir, "--resume=auto"}, test.args...)...)
		require.Equal(t, exitInput, status)
		require.Contains(t, stderr, test.want)
		require.Equal(t, before, read(t, dir, "config.toml"))
	}

	// Missing checkpoints do not restart the run either.
	require.NoError(t, os.Rename(filepath.Join(dir, "checkpoints"), filepath.Join(t.TempDir(), "away")))
	status, _, errs := octet(auto...)
	require.Equal(t, exitInput, status)
	require.Contains(t, errs, "mount its file system")
	require.Contains(t, errs, "to restart this run at step 0, which loses the records of its steps, remove "+filepath.Join(dir, "run.log"))
	require.NotContains(t, errs, "--resume: ")
}

// A volume may be mounted at checkpoints before the first start. For a run without its
// config.toml, the error names the files that remain, and they stay as they are.
func TestAutoWithoutConfig(t *testing.T) {
	dir, text := filepath.Join(t.TempDir(), "run"), corpus(t, 20_000)
	checkpoints := filepath.Join(dir, "checkpoints")
	require.NoError(t, os.MkdirAll(filepath.Join(checkpoints, "lost+found"), 0o700))
	auto := append(trainArgs(text, dir, 2), "--resume=auto")
	_, stderr := succeed(t, auto...)
	require.NotContains(t, stderr, "resuming")
	require.FileExists(t, filepath.Join(checkpoints, "step-00000002", "state.json"))

	require.NoError(t, os.Remove(filepath.Join(dir, "config.toml")))
	for _, holds := range []string{"checkpoints", "metrics.jsonl"} {
		before := names(t, dir)
		for _, args := range [][]string{auto, trainArgs(text, dir, 2), {"train", "--resume", "--out", dir}} {
			status, _, stderr := octet(args...)
			require.Equal(t, exitInput, status)
			require.Contains(t, stderr, "holds "+holds+" but no config.toml")
			require.Contains(t, stderr, "put the run's config.toml back")
			require.NotContains(t, stderr, "already holds a run")
			require.Equal(t, before, names(t, dir))
		}
		require.NoError(t, os.RemoveAll(checkpoints))
	}
}

func TestResumeFlag(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--resume=auto"}, "--resume=auto needs --out RUN"},
		{[]string{"--resume"}, "--resume needs --out RUN"},
		{[]string{"--resume=sometimes"}, `"sometimes" is unknown: give --resume, or --resume=auto`},
		{[]string{"--resume", "auto", "--out", "x"}, "write --resume=auto"},
		{[]string{"--resume", "--out", "x"}, "x does not exist"},
	} {
		status, _, stderr := octet(append([]string{"train"}, test.args...)...)
		require.Equal(t, exitInput, status)
		require.Contains(t, stderr, test.want)
	}
}

// Every argument that takes a path refuses a URL, and no folder of its name is made.
func TestURLsAreNoPaths(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, args := range [][]string{
		{"train", "--out", "s3://bucket/run"},
		{"train", "--data", "https://example.com/a.txt"},
		{"train", "hf://org/config.toml"},
		{"train", "model.init=hf://org/model"},
		{"train", `data.paths=["a.txt", "gs://b"]`},
		{"train", "--dry-run", "data.paths=s3://b"},
		{"train", "--resume", "--out", "s3://bucket/run"},
		{"train", "--resume=auto", "--out", "s3://bucket/run"},
		{"plan", "model.init=hf://org/model"},
		{"compare", "--backend", "emu", "--backend", "ref", "model.init=hf://org/model"},
		{"eval", "hf://org/model"},
		{"eval", ".", "--data", "https://x/y"},
		{"generate", "hf://org/model", "--prompt", "a"},
		{"export", ".", "--out", "s3://bucket"},
		{"export", "s3://bucket", "--out", "x"},
		{"inspect", "hf://org/model"},
		{"diff", ".", "s3://bucket"},
		{"gemm", "https://x/a", "b"},
		{"doctor", "--report", "file:///tmp/x"},
	} {
		status, _, stderr := octet(args...)
		require.Equal(t, exitInput, status, args)
		require.Contains(t, stderr, " is a URL, and octet ", args)
		require.Empty(t, names(t, "."), args)
	}
	status, _, stderr := octet("generate", "nowhere", "--prompt", "see https://example.com")
	require.Equal(t, exitInput, status)
	require.NotContains(t, stderr, "URL")
}

// An argument that is not UTF-8 is refused, instead of replaced by another name.
func TestArgumentsThatAreNotUTF8(t *testing.T) {
	for _, args := range [][]string{{"train", "--data", "caf\xe9.txt"}, {"train", "--data=caf\xe9.txt"}, {"eval", "caf\xe9"}} {
		status, _, stderr := octet(args...)
		require.Equal(t, exitInput, status)
		require.Contains(t, stderr, `caf\xe9`)
		require.Contains(t, stderr, "is not UTF-8")
	}
	status, _, stderr := octet("generate", "nowhere", "--prompt", "caf\xe9")
	require.Equal(t, exitInput, status)
	require.NotContains(t, stderr, "UTF-8")
}

// A process that never made an update fails, although its checkpoints are saved.
func TestEveryStepSkipped(t *testing.T) {
	text := corpus(t, 20_000)
	dir := filepath.Join(t.TempDir(), "run")
	succeed(t, trainArgs(text, dir, 3, "optimizer.lr=1e30", "optimizer.clip=0", "optimizer.warmup=0", "train.on_nonfinite=10", "checkpoint.every=1", "--json")...)
	status, stdout, stderr := octet("train", "--resume", "--out", dir, "--steps", "5", "--json")
	require.Equal(t, exitFailed, status, stderr)
	require.Contains(t, stderr, "octet: none of the 2 steps made an update")
	require.Contains(t, stdout, `"skipped":2,`)
}

// Too few file descriptors give an error that says so; octet never falls back to another
// corpus for that reason.
func TestFewDescriptors(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs ulimit of sh")
	}
	for limit := 10; limit < 18; limit++ {
		dir := filepath.Join(t.TempDir(), "run")
		args := append([]string{"train", "--out", dir, "--steps", "1", "--metrics-addr", "0"}, small...)
		cmd := exec.Command("sh", append([]string{"-c", fmt.Sprintf(`ulimit -n %d; exec "$0" "$@"`, limit), os.Args[0]}, args...)...)
		stderr := startCommand(t, cmd)
		if cmd.Wait() != nil {
			require.Regexp(t, `(^|\n)octet: .*too many open files.*ulimit -n 1024\n$`, stderr.String(), limit)
		}
		require.NotContains(t, stderr.String(), "octet's own source", limit)
	}
}
