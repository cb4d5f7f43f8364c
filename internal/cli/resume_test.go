package cli

import (
	"bytes"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// start runs a command line in its own process, with additional environment variables.
func start(t *testing.T, args []string, env ...string) (cmd *exec.Cmd, stderr *syncBuffer) {
	t.Helper()
	cmd = exec.Command(os.Args[0], args...)
	return cmd, startCommand(t, cmd, env...)
}

// startCommand starts a command in which the test binary acts as octet.
func startCommand(t *testing.T, cmd *exec.Cmd, env ...string) (stderr *syncBuffer) {
	t.Helper()
	cmd.Env = append(append(os.Environ(), asCommand+"=1"), env...)
	stderr = &syncBuffer{}
	cmd.Stderr = stderr
	require.NoError(t, cmd.Start())
	return stderr
}

// waitFor polls until done, with a timeout that only a hang exceeds.
func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	require.Eventually(t, done, time.Minute, time.Millisecond)
}

// steps returns the number of steps that a run has recorded.
func steps(dir string) int {
	text, _ := os.ReadFile(filepath.Join(dir, "metrics.jsonl"))
	return bytes.Count(text, []byte("\n"))
}

// A run that is killed several times ends like one that was not.
func TestKilled(t *testing.T) {
	text := corpus(t, 20_000)
	const n = 240
	more := []string{"checkpoint.every=25", "train.eval_every=40", "data.val_bytes=500"}
	uninterrupted, dir := filepath.Join(t.TempDir(), "uninterrupted"), filepath.Join(t.TempDir(), "killed")
	succeed(t, trainArgs(text, uninterrupted, n, more...)...)

	args := trainArgs(text, dir, n, more...)
	kills := 0
	for third := range 3 {
		at := third*n/4 + 1 + rand.IntN(n/4)
		cmd, _ := start(t, args)
		waitFor(t, func() bool { return steps(dir) >= at })
		time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
		require.NoError(t, cmd.Process.Kill())
		if cmd.Wait() != nil {
			kills++
		}
		t.Logf("killed after step %d, at %d", at, steps(dir))
		args = []string{"train", "--resume", "--out", dir}
	}
	require.NotZero(t, kills)
	_, stderr := succeed(t, args...)
	require.Regexp(t, `\nresuming after step [1-9]`, stderr)
	sameRun(t, uninterrupted, dir)
	require.Equal(t, n, strings.Count(read(t, dir, "timing.jsonl"), "\n"))
}

// A run killed before its first checkpoint starts again at step 0, and says so.
func TestKilledEarly(t *testing.T) {
	text := corpus(t, 20_000)
	const n = 60
	uninterrupted, dir := filepath.Join(t.TempDir(), "uninterrupted"), filepath.Join(t.TempDir(), "killed")
	succeed(t, trainArgs(text, uninterrupted, n)...)
	cmd, _ := start(t, trainArgs(text, dir, n))
	waitFor(t, func() bool { return steps(dir) >= 2 })
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	require.NoDirExists(t, filepath.Join(dir, "checkpoints", "step-00000060"))

	_, stderr := succeed(t, "train", "--resume", "--out", dir)
	require.Contains(t, stderr, "the run has no checkpoint yet: starting at step 0\n")
	sameRun(t, uninterrupted, dir)
}

func TestDamagedCheckpoint(t *testing.T) {
	text := corpus(t, 20_000)
	dir := filepath.Join(t.TempDir(), "run")
	succeed(t, trainArgs(text, dir, 30, "checkpoint.every=10", "checkpoint.keep_last=3")...)
	whole := t.TempDir()
	require.NoError(t, os.CopyFS(whole, os.DirFS(dir)))
	newest := filepath.Join(dir, "checkpoints", "step-00000030", "model.safetensors")
	content := []byte(read(t, newest))
	content[len(content)/2] ^= 1
	require.NoError(t, os.WriteFile(newest, content, 0o600))
	require.NoError(t, os.Truncate(filepath.Join(dir, "checkpoints", "step-00000020", "state.json"), 3))

	_, stderr := succeed(t, "eval", dir)
	require.Contains(t, stderr, "skipped a damaged checkpoint")
	_, stderr = succeed(t, "train", "--resume", "--out", dir)
	require.Regexp(t, `\nskipped a damaged checkpoint: .*step-00000030: .*model.safetensors.*\n`, stderr)
	require.Regexp(t, `\nskipped a damaged checkpoint: .*step-00000020: .*state.json.*\n`, stderr)
	require.Contains(t, stderr, "\nresuming after step 10\n")
	require.Contains(t, read(t, dir, "run.log"), "damaged checkpoint skipped")
	sameRun(t, whole, dir)
}

// If all checkpoints are damaged, a resume would truncate all records: the user must decide.
func TestNoIntactCheckpoint(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	succeed(t, trainArgs(corpus(t, 20_000), dir, 4, "checkpoint.every=2")...)
	checkpoints := filepath.Join(dir, "checkpoints")
	require.NoError(t, os.Truncate(filepath.Join(checkpoints, "step-00000002", "state.json"), 3))
	require.NoError(t, os.Truncate(filepath.Join(checkpoints, "step-00000004", "model.safetensors"), 3))
	before, records := names(t, dir), read(t, dir, "metrics.jsonl")

	status, stdout, stderr := octet("train", "--resume", "--out", dir, "--steps", "6")
	require.Equal(t, exitInput, status)
	require.Empty(t, stdout)
	requireOneSentence(t, strings.TrimPrefix(stderr, firstLines(stderr)))
	require.Contains(t, stderr, filepath.Join(checkpoints, "step-00000004", "model.safetensors")+": 3 bytes, the manifest says ")
	require.Contains(t, stderr, "; start a new run in another folder, or remove "+checkpoints+" and "+filepath.Join(dir, "run.log")+" to restart this run at step 0, which loses the records of its steps\n")
	require.Equal(t, before, names(t, dir))
	require.Equal(t, records, read(t, dir, "metrics.jsonl"))
	require.Contains(t, read(t, dir, "config.toml"), "steps = 4")

	require.NoError(t, os.RemoveAll(checkpoints))
	require.NoError(t, os.Remove(filepath.Join(dir, "run.log")))
	_, stderr = succeed(t, "train", "--resume", "--out", dir)
	require.Contains(t, stderr, "starting at step 0\n")
	require.Equal(t, records, read(t, dir, "metrics.jsonl"))
}

// A resumed run may change its length, and keeps the new one.
func TestLonger(t *testing.T) {
	text := corpus(t, 20_000)
	dir := filepath.Join(t.TempDir(), "run")
	succeed(t, trainArgs(text, dir, 4)...)
	resume := []string{"train", "--resume", "--out", dir}
	stdout, stderr := succeed(t, resume...)
	require.Contains(t, stdout, "nothing to do: all 4 steps are done")
	require.NotContains(t, stderr, "about", "no expected duration")
	_, stderr = succeed(t, append(resume, "--steps", "6", "--threads", "1")...)
	require.Regexp(t, `\nresuming after step 4\nthe run is longer now: the learning rate rises again, from 0\.0002 to 0\.00\d+\n`, stderr)
	require.Equal(t, 6, steps(dir))
	stdout, stderr = succeed(t, resume...)
	require.Contains(t, stdout, "all 6 steps are done")
	require.NotContains(t, stderr, "rises again")

	before := read(t, dir, "config.toml")
	for _, test := range []struct {
		want string
		more []string
	}{
		{"seed is given with --resume", []string{"--seed", "2"}},
		{"recipe is given with --resume", []string{"--recipe", "bf16"}},
		{"data.paths is given with --resume", []string{"--data", text}},
		{"optimizer.lr is given with --resume", []string{"optimizer.lr=1"}},
		{"takes the config.toml of its own folder", []string{"other.toml"}},
		{"the run has done 6 already", []string{"--steps", "5"}},
		{"unknown backend", []string{"--backend", "tpu"}},
	} {
		status, stdout, stderr := octet(append(resume, test.more...)...)
		require.Equal(t, exitInput, status)
		require.Empty(t, stdout)
		require.Contains(t, stderr, test.want)
	}
	require.Equal(t, before, read(t, dir, "config.toml"))

	// Another text is refused.
	hash := func() string {
		_, rest, _ := strings.Cut(read(t, dir, "data.json"), `"sha256": "`)
		return rest[:64]
	}()
	require.NoError(t, os.WriteFile(text, []byte(goText(20_001)), 0o600))
	status, _, stderr := octet(append(resume, "--steps", "8")...)
	require.Equal(t, exitInput, status)
	requireOneSentence(t, stderr)
	require.Contains(t, stderr, hash)
	require.Regexp(t, `but this is sha256 [0-9a-f]{64}`, stderr)
	require.Equal(t, before, read(t, dir, "config.toml"))
}

// A resume that makes the run shorter prints the change of the learning rate.
func TestShorter(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	succeed(t, trainArgs(corpus(t, 20_000), dir, 8, "checkpoint.every=4")...)
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "checkpoints", "step-00000008")))
	stdout, stderr := succeed(t, "train", "--resume", "--out", dir, "--steps", "6")
	require.Regexp(t, `^trained     128 tokens in \d:\d\d since the resume\n`, stdout)
	require.Regexp(t, `\nresuming after step 4\nthe run is shorter now: the learning rate changes from 0\.00\d+ to 0\.00\d+\n`, stderr)
}

// Edits of config.toml are applied and printed, or refused if they do not fit the weights.
func TestEditedConfig(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	succeed(t, trainArgs(corpus(t, 20_000), dir, 4, "optimizer.lr=0.002")...)
	path := filepath.Join(dir, "config.toml")
	edit := func(from, to string) {
		text := read(t, dir, "config.toml")
		require.Contains(t, text, from)
		require.NoError(t, os.WriteFile(path, []byte(strings.Replace(text, from, to, 1)), 0o600))
	}
	resume := func(steps string) []string {
		return []string{"train", "--resume", "--out", dir, "--steps", steps}
	}
	edit("lr = 0.002", "lr = 0.001")
	edit("clip = 1.0", "clip = 0.5")
	_, stderr := succeed(t, resume("6")...)
	require.Contains(t, stderr, "\nresuming after step 4\nchanged in config.toml since the checkpoint: optimizer.lr 0.002 -> 0.001,\noptimizer.clip 1.0 -> 0.5\n")
	require.Contains(t, read(t, dir, "run.log"), `"keys":["optimizer.lr 0.002 -> 0.001","optimizer.clip 1.0 -> 0.5"]`)
	_, stderr = succeed(t, resume("8")...)
	require.NotContains(t, stderr, "changed")

	for _, test := range []struct{ old, new, want string }{
		{"\nheads = 2", "\nheads = 1", `config.json has model.heads 2, not 1 \(changed in config.toml since: model.heads 2 -> 1\)`},
		{"\nlayers = 1", "\nlayers = 2", `config.json has model.layers 1, not 2 \(`},
		{"ffn = 48", "ffn = 64", `config.json has model.ffn 48, not 64 \(changed in config.toml since: model.ffn 48 -> 64\)`},
		{"rope_theta = 10000.0", "rope_theta = 500.0", `config.json has model.rope_theta 10000, not 500 \(`},
		{"seed = 1", "seed = 2", `it belongs to a run with seed 1, but the configuration has seed 2 \(`},
	} {
		edit(test.old, test.new)
		status, stdout, stderr := octet(resume("10")...)
		require.Equal(t, exitInput, status)
		require.Empty(t, stdout)
		requireOneSentence(t, strings.TrimPrefix(stderr, firstLines(stderr)))
		require.Regexp(t, test.want, stderr)
		edit(test.new, test.old)
	}
	succeed(t, resume("10")...)
}

func TestNothingToResume(t *testing.T) {
	file := corpus(t, 10)
	t.Chdir(t.TempDir())
	for out, want := range map[string]string{
		"":     "--resume needs --out RUN",
		"none": "none does not exist",
		".":    ". is not a run folder: it has no config.toml",
		file:   file + " is not a run folder: it has no config.toml",
	} {
		args := []string{"train", "--resume"}
		if out != "" {
			args = append(args, "--out", out)
		}
		status, _, stderr := octet(args...)
		require.Equal(t, exitInput, status)
		requireOneSentence(t, stderr)
		require.Contains(t, stderr, want)
		require.Empty(t, names(t, "."))
	}
}

// One process at a time uses a run folder. Others get an error, and may read it.
func TestTwoProcesses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	text := corpus(t, 20_000)
	cmd, _ := start(t, trainArgs(text, dir, 1_000_000, "checkpoint.every=5", "train.eval_every=0"))
	defer func() {
		require.NoError(t, cmd.Process.Kill())
		require.Error(t, cmd.Wait())
	}()
	waitFor(t, func() bool { return steps(dir) >= 12 })
	for _, args := range [][]string{{"train", "--resume", "--out", dir}, trainArgs(text, dir, 3)} {
		status, stdout, stderr := octet(args...)
		require.Equal(t, exitInput, status)
		require.Empty(t, stdout)
		require.Contains(t, stderr, "is in use by another octet process")
	}
	before := steps(dir)
	succeed(t, "eval", dir)
	waitFor(t, func() bool { return steps(dir) > before })
}

// Training works without HOME, PATH, TERM or any other variable.
func TestEmptyEnvironment(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	cmd := exec.Command(os.Args[0], slices.Concat([]string{"train", "--out", dir, "--steps", "3"}, small)...)
	cmd.Env = []string{asCommand + "=1"}
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)
	require.Equal(t, 3, steps(dir))
	require.Contains(t, string(text), "octet's own source")
}

// syncBuffer is a buffer for concurrent writes and reads.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
