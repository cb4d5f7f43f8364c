//go:build unix

package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A signal falls into the middle of a step, which is finished and saved. Of two
// ranks, because their meetings are where a cancelled step would break off.
func TestSignal(t *testing.T) {
	text := corpus(t, 20_000)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		dir := filepath.Join(t.TempDir(), "run")
		cmd, stderr := start(t, trainArgs(text, dir, 1_000_000, "checkpoint.every=0", "train.eval_every=0", "train.accumulate=20", "train.ranks=2"))
		waitFor(t, func() bool { return steps(dir) >= 3 })
		require.NoError(t, cmd.Process.Signal(sig))
		var exit *exec.ExitError
		require.ErrorAs(t, cmd.Wait(), &exit)
		require.Equal(t, 128+int(sig), exit.ExitCode(), stderr)

		done := steps(dir)
		saved := names(t, filepath.Join(dir, "checkpoints"))
		require.Len(t, saved, 1)
		require.Regexp(t, `\noctet: stopped after step \d+ of 1000000, saved in `+dir+`/checkpoints/`+saved[0]+
			`\ngo on       octet train --resume --out `+dir+"\n$", stderr.String())
		require.Equal(t, 1, strings.Count(stderr.String(), "octet: stopping"))
		require.NotContains(t, stderr.String(), "goroutine")

		status, _, errs := octet("train", "--resume", "--out", dir, "train.steps=1")
		require.Equal(t, exitInput, status)
		require.Contains(t, errs, "the run has done ")
		require.Equal(t, done, steps(dir))
	}
}

// The second signal does not wait for the evaluation that the first one does.
func TestSecondSignal(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	cmd, stderr := start(t, trainArgs(corpus(t, 20_000_000), dir, 10, "train.eval_every=1", "data.val_bytes=2000000"))
	waitFor(t, func() bool { return strings.Contains(stderr.String(), "\nrun  ") })
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	waitFor(t, func() bool { return strings.Contains(stderr.String(), "octet: stopping; once more stops at once") })
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	status := exit.Sys().(syscall.WaitStatus)
	require.True(t, status.Signaled())
	require.Equal(t, syscall.SIGINT, status.Signal())
	require.NoDirExists(t, filepath.Join(dir, "checkpoints"))
}

// A signal before the first step leaves nothing.
func TestSignalBeforeTheStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	cmd, stderr := start(t, trainArgs(corpus(t, 50_000_000), dir, 10))
	waitFor(t, func() bool { _, err := os.Stat(filepath.Join(dir, "config.toml")); return err == nil })
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, 130, exit.ExitCode())
	require.Contains(t, stderr.String(), "octet: stopped before the first step; nothing was changed\n")
	require.NoDirExists(t, dir)
}
