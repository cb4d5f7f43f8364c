//go:build unix

package cli

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/checkpoint"
)

// After a signal, the run finishes its step and saves. It has two ranks, because a cancelled
// step would break off in a collective.
func TestSignal(t *testing.T) {
	text := corpus(t, 20_000)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		dir := filepath.Join(t.TempDir(), "run")
		cmd, stderr := start(t, trainArgs(text, dir, 1_000_000, "checkpoint.every=0", "train.eval_every=0", "train.accumulate=20", "train.ranks=2"))
		waitFor(t, func() bool { return steps(dir) >= 3 })
		require.NoError(t, cmd.Process.Signal(sig))
		if sig == syscall.SIGHUP { // the shell and the system each send one
			waitFor(t, func() bool { return strings.Contains(stderr.String(), "octet: stopping") })
			require.NoError(t, cmd.Process.Signal(sig))
		}
		var exit *exec.ExitError
		require.ErrorAs(t, cmd.Wait(), &exit)
		require.Equal(t, 128+int(sig), exit.ExitCode(), stderr)

		done := steps(dir)
		saved := names(t, filepath.Join(dir, "checkpoints"))
		require.Len(t, saved, 1)
		require.Regexp(t, `\noctet: stopped after step \d+ of 1000000, saved in `+dir+`/checkpoints/`+saved[0]+
			`\nresume      octet train --resume --out `+dir+"\n$", stderr.String())
		require.Equal(t, 1, strings.Count(stderr.String(), "octet: stopping"))
		require.NotContains(t, stderr.String(), "goroutine")

		status, _, errs := octet("train", "--resume", "--out", dir, "train.steps=1")
		require.Equal(t, exitInput, status)
		require.Contains(t, errs, "the run has done ")
		require.Equal(t, done, steps(dir))
	}
}

// The first signal waits for an evaluation; the second one quits at once, also in a process
// that a script started with &, for which the shell ignores SIGINT.
func TestSecondSignal(t *testing.T) {
	text := corpus(t, 20_000_000)
	for _, ignored := range []bool{false, true} {
		dir := filepath.Join(t.TempDir(), "run")
		args := trainArgs(text, dir, 10, "train.eval_every=1", "data.val_bytes=2000000")
		cmd := exec.Command(os.Args[0], args...)
		if ignored {
			cmd = exec.Command("sh", append([]string{"-c", `trap "" INT; exec "$0" "$@"`, os.Args[0]}, args...)...)
		}
		stderr := startCommand(t, cmd)
		waitFor(t, func() bool { return strings.Contains(stderr.String(), "\nrun  ") })
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		waitFor(t, func() bool { return strings.Contains(stderr.String(), "octet: stopping; a second signal quits") })
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		var exit *exec.ExitError
		require.ErrorAs(t, cmd.Wait(), &exit)
		status := exit.Sys().(syscall.WaitStatus)
		if ignored {
			require.Equal(t, 130, status.ExitStatus())
		} else {
			require.True(t, status.Signaled())
			require.Equal(t, syscall.SIGINT, status.Signal())
		}
		require.NoDirExists(t, filepath.Join(dir, "checkpoints"))
	}
}

// A signal before the first step leaves nothing.
func TestSignalBeforeTheStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	slow := failpoint{When: "slow", Name: "rename:.data.json.partial", N: 1, After: time.Second}
	cmd, stderr := start(t, trainArgs(corpus(t, 20_000), dir, 10), killAt+"="+slow.String())
	waitFor(t, func() bool { _, err := os.Stat(filepath.Join(dir, "config.toml")); return err == nil })
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, 130, exit.ExitCode())
	require.Contains(t, stderr.String(), "octet: stopped before the first step; nothing was changed\n")
	require.NoDirExists(t, dir)
}

// A signal stops an export between two writes, and the export removes its unfinished folder.
func TestSignalDuringExport(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	succeed(t, trainArgs(corpus(t, 20_000), dir, 1)...)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		parent := t.TempDir()
		slow := failpoint{When: "slow", Name: "write:model.safetensors", N: 1, After: time.Second}
		cmd, stderr := start(t, []string{"export", dir, "--out", filepath.Join(parent, "out")}, killAt+"="+slow.String())
		waitFor(t, func() bool { return len(names(t, parent)) > 0 })
		require.NoError(t, cmd.Process.Signal(sig))
		var exit *exec.ExitError
		require.ErrorAs(t, cmd.Wait(), &exit)
		require.Equal(t, 128+int(sig), exit.ExitCode(), stderr)
		require.Contains(t, stderr.String(), "octet: stopped; "+filepath.Join(parent, "out")+" was not written\n")
		require.Empty(t, names(t, parent))
	}
}

// What nohup starts does not stop when the terminal is closed.
func TestNohup(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	args := trainArgs(corpus(t, 20_000), dir, 300, "train.eval_every=0")
	cmd := exec.Command("sh", append([]string{"-c", `trap "" HUP; exec "$0" "$@"`, os.Args[0]}, args...)...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	require.NoError(t, cmd.Start())
	waitFor(t, func() bool { return steps(dir) >= 3 })
	require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
	require.NoError(t, cmd.Wait())
	require.Equal(t, 300, steps(dir))
}

// When the reader of the output has gone, training continues to its end, and the status says
// that the result was not printed.
func TestBrokenPipe(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	cmd := exec.Command(os.Args[0], trainArgs(corpus(t, 20_000), dir, 200, "train.eval_every=1", "checkpoint.every=50", "--json")...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd.Stdout, cmd.Stderr = w, w
	require.NoError(t, cmd.Start())
	require.NoError(t, w.Close())
	_, err = r.Read(make([]byte, 1)) // as head -c 1 does
	require.NoError(t, err)
	require.NoError(t, r.Close())
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, exitFailed, exit.ExitCode())
	require.Equal(t, 200, steps(dir))
	require.NoError(t, checkpoint.Verify(filepath.Join(dir, "checkpoints", "step-00000200")))
}

// A signal that stopped the run does not hide an error of closing it.
func TestErrorOfClosing(t *testing.T) {
	lost := errors.New("the device is lost")
	for _, test := range []struct {
		err, closing error
		status       int
		want         string
	}{
		{stopped{130}, nil, 130, ""},
		{stopped{130}, lost, 130, "octet: the device is lost\n"},
		{nil, lost, exitFailed, "octet: the device is lost\n"},
		{errors.New("a full disk"), lost, exitFailed, "octet: a full disk\nthe device is lost\n"},
		{nil, nil, 0, ""},
	} {
		var said bytes.Buffer
		on := &terminal{err: &said}
		require.Equal(t, test.status, on.status(on.closed(test.err, test.closing)))
		require.Equal(t, test.want, said.String())
	}
}

// The first signal during the write of a checkpoint waits for it and for one more; the
// second signal waits for nothing. A resume loses nothing.
func TestSignalWhileACheckpointIsWritten(t *testing.T) {
	k := uninterruptedRun(t)
	for signals, after := range map[int]time.Duration{1: 2 * time.Second, 2: time.Minute} { // the second signal cuts a minute short
		slow := failpoint{When: "slow", Name: "sync:.step-00000003/optimizer.safetensors", N: 1, After: after}
		dir := filepath.Join(t.TempDir(), "run")
		cmd, stderr := start(t, k.train(dir), killAt+"="+slow.String())
		waitFor(t, func() bool {
			list, _ := filepath.Glob(filepath.Join(dir, "checkpoints", ".step-00000003*", "optimizer.safetensors"))
			return len(list) > 0
		})
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		waitFor(t, func() bool { return strings.Contains(stderr.String(), "octet: stopping") })
		if signals == 2 {
			require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		}
		require.Error(t, cmd.Wait())
		list, err := checkpoint.List(filepath.Join(dir, "checkpoints"))
		require.NoError(t, err)
		if signals == 1 {
			require.Equal(t, 143, cmd.ProcessState.ExitCode(), stderr)
			require.GreaterOrEqual(t, len(list), 2)
			require.Equal(t, 3, list[len(list)-1].Step)
			require.NoError(t, checkpoint.Verify(list[0].Path))
		} else {
			require.Equal(t, -1, cmd.ProcessState.ExitCode())
			require.Empty(t, list)
		}
		succeed(t, "train", "--resume", "--out", dir)
		sameRun(t, k.uninterrupted, dir)
	}
}

// SIGUSR1 saves a checkpoint and training continues: the checkpoint is intact, the run ends
// like one without a signal, and a signal during the write of a checkpoint gives another one.
func TestSaveSignal(t *testing.T) {
	k := uninterruptedRun(t)
	dir := filepath.Join(t.TempDir(), "run")
	slow := failpoint{When: "slow", Name: "sync:.step-00000003/optimizer.safetensors", N: 1, After: time.Second}
	cmd, stderr := start(t, k.train(dir), killAt+"="+slow.String())
	waitFor(t, func() bool {
		list, _ := filepath.Glob(filepath.Join(dir, "checkpoints", ".step-00000003*", "optimizer.safetensors"))
		return len(list) > 0
	})
	for range 3 {
		require.NoError(t, cmd.Process.Signal(syscall.SIGUSR1))
	}
	require.NoError(t, cmd.Wait(), stderr)
	require.Contains(t, stderr.String(), ": writing the checkpoint that SIGUSR1 requested, while training continues\n")
	require.Regexp(t, `"msg":"checkpoint requested","step":[4-9]`, read(t, dir, "run.log"))
	sameRun(t, k.uninterrupted, dir)
}

// A SIGUSR1 before the first step is not lost, and does not end the process.
func TestEarlySaveSignal(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	slow := failpoint{When: "slow", Name: "rename:.data.json.partial", N: 1, After: time.Second}
	cmd, stderr := start(t, trainArgs(corpus(t, 20_000), dir, 3, "checkpoint.every=0"), killAt+"="+slow.String())
	waitFor(t, func() bool { _, err := os.Stat(filepath.Join(dir, "config.toml")); return err == nil })
	require.NoError(t, cmd.Process.Signal(syscall.SIGUSR1))
	require.NoError(t, cmd.Wait(), stderr)
	require.Contains(t, stderr.String(), "step 1: writing the checkpoint that SIGUSR1 requested")
	require.Contains(t, read(t, dir, "run.log"), `"msg":"checkpoint","step":1,`)
}
