package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/checkpoint"
	"octet/internal/sweep"
)

var stepTime = regexp.MustCompile(` [\d.e+]+ ms`)

// steadyTable is a table without times and the line that names its folder.
func steadyTable(table string) string {
	text, _, _ := strings.Cut(table, "\nruns  ")
	return stepTime.ReplaceAllString(text, "")
}

// A sweep that is killed at ten random moments and started again ends like one that was not:
// the same table, and the same bits in every run.
func TestSweepKilled(t *testing.T) {
	file := sweepFile(t, 40, `recipes = ["bf16", "fp8-smooth"]`, "seeds = [1, 2]", "[grid]", `"checkpoint.every" = [7]`)
	whole, out := filepath.Join(t.TempDir(), "whole"), filepath.Join(t.TempDir(), "out")
	begin := time.Now()
	want, _ := succeed(t, "sweep", file, "-o", whole)
	took := time.Since(begin)
	kills := 0
	for range 10 {
		cmd, stderr := start(t, []string{"sweep", file, "-o", out})
		time.Sleep(rand.N(took / 2))
		_ = cmd.Process.Kill() // it may have ended
		if cmd.Wait() != nil {
			require.Equal(t, -1, cmd.ProcessState.ExitCode(), stderr)
			kills++
		}
	}
	got, stderr := succeed(t, "sweep", file, "-o", out)
	require.Equal(t, steadyTable(want), steadyTable(got))
	require.Equal(t, results(t, whole), results(t, out))
	require.NoFileExists(t, filepath.Join(out, "failures.json"))
	for _, r := range results(t, whole) {
		sameRun(t, filepath.Join(whole, r[8]), filepath.Join(out, r[8]))
	}
	t.Logf("%d of 10 kills came before the end; then:\n%s", kills, stderr)
}

// SIGINT stops every run with a checkpoint, and the same command resumes them. A run whose
// folder another process uses is waited for.
func TestSweepStopped(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows cannot send SIGINT to one process")
	}
	file := sweepFile(t, 4000, "seeds = [1, 2]")
	out := filepath.Join(t.TempDir(), "out")
	args := []string{"sweep", file, "-o", out, "--jobs", "2", "--json"}
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		cmd := exec.Command(os.Args[0], args...)
		var stdout bytes.Buffer
		cmd.Stdout = &stdout
		stderr := startCommand(t, cmd)
		run := func(seed string) string { return filepath.Join(out, "runs", "fp8-smooth", "seed-"+seed) }
		before1, before2 := steps(run("1")), steps(run("2"))
		waitFor(t, func() bool { return steps(run("1")) > before1 && steps(run("2")) > before2 })
		require.NoError(t, cmd.Process.Signal(sig))
		require.Error(t, cmd.Wait())
		require.Equal(t, 128+int(sig), cmd.ProcessState.ExitCode(), stderr)
		require.Contains(t, stderr.String(), "stopped; 0 of 2 runs have ended")
		var result sweepResult
		require.NoError(t, json.Unmarshal(stdout.Bytes(), &result))
		require.Len(t, result.Runs, 2)
		require.Equal(t, sweep.Pending, result.Runs[1].State)
		require.Positive(t, result.Runs[1].Step)
		for _, seed := range []string{"1", "2"} {
			saved, err := checkpoint.List(filepath.Join(run(seed), "checkpoints"))
			require.NoError(t, err)
			require.Equal(t, steps(run(seed)), saved[0].Step)
			require.Contains(t, read(t, out, "results.csv"), fmt.Sprintf(",%s,emu,pending,%d,4000,", seed, saved[0].Step))
		}
	}

	unlock, err := checkpoint.Lock(filepath.Join(out, "runs", "fp8-smooth", "seed-1"))
	require.NoError(t, err)
	cmd, stderr := start(t, args)
	waitFor(t, func() bool { return strings.Contains(stderr.String(), "seed-1, which another process uses") })
	require.NoError(t, unlock())
	at := steps(filepath.Join(out, "runs", "fp8-smooth", "seed-1"))
	waitFor(t, func() bool { return steps(filepath.Join(out, "runs", "fp8-smooth", "seed-1")) > at })
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.Error(t, cmd.Wait())
}

// A run that a signal ends, such as that of a system without memory, is a row with this
// error. The same command resumes it, without --retry.
func TestSweepWithKilledRuns(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no signal that ends a process")
	}
	file := sweepFile(t, 3, "seeds = [1, 2]")
	out := filepath.Join(t.TempDir(), "out")
	t.Setenv(killAt, failpoint{When: "before", Name: "write:metrics.jsonl", N: 2}.String()) // of the runs
	status, table, stderr := octet("sweep", file, "-o", out)
	require.Equal(t, exitFailed, status)
	require.Contains(t, stderr, "2 runs failed")
	require.Contains(t, table, "seed 2: a signal ended the process")
	require.Regexp(t, `\nfp8-smooth +0 of 2 +– +– +baseline`, table)
	for _, r := range results(t, out) {
		require.Equal(t, []string{"failed", "1", "3"}, r[3:6])
	}
	t.Setenv(killAt, "")
	succeed(t, "sweep", file, "-o", out)
	for _, r := range results(t, out) {
		require.Equal(t, []string{"done", "3", "3"}, r[3:6])
	}
}
