package run

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/checkpoint"
	"octet/internal/disk"
	"octet/train"
)

// savingConfig returns the config of a run with four checkpoints.
func savingConfig(t *testing.T) train.Config {
	t.Helper()
	spikes().batches = nil
	c := tinyConfig(t)
	c.Recipe = "fp8-smooth"
	c.Train.Steps, c.Checkpoint.Every, c.Checkpoint.KeepLast = 8, 2, 1
	require.NoError(t, c.Resolve())
	return c
}

// uninterrupted returns the files of an uninterrupted run of c.
func uninterrupted(t *testing.T, c train.Config) map[string]string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "uninterrupted")
	trainIn(t, c, dir, func(Progress) {})
	return files(t, dir)
}

// trainWithoutWaiting is tryTrain without a wait for checkpoints after each step.
func trainWithoutWaiting(ctx context.Context, c train.Config, dir string, report func(Progress)) error {
	r, err := Start(ctx, Options{Config: c, Dir: dir, Backend: "emu", Threads: 1})
	if err != nil {
		return err
	}
	return errors.Join(r.Train(ctx, report), r.Close())
}

// failing makes every change of a kind to a checkpoint of a step fail.
func failing(step string, op disk.Op, cause error) func(disk.Change) error {
	return func(c disk.Change) error {
		switch {
		case c.Op != op || !strings.Contains(c.Path, step):
			return c.Do()
		case c.Half != nil:
			return errors.Join(c.Half(), cause)
		}
		return cause
	}
}

// ending returns how a run ends if its second checkpoint cannot be written.
func ending(t *testing.T, c train.Config) []string {
	t.Helper()
	defer disk.Intercept(failing("step-00000002", disk.Write, syscall.ENOSPC))()
	dir := filepath.Join(t.TempDir(), "run")
	if err := tryTrain(t.Context(), c, dir, func(Progress) {}); err != nil {
		return []string{"stopped"}
	}
	return nil
}

// A checkpoint that cannot be written leaves the earlier ones intact. The run stops and can
// be resumed, or continues at once; both end like a run without a fault.
func TestFailedCheckpoint(t *testing.T) {
	c := savingConfig(t)
	want := uninterrupted(t, c)
	for op, cause := range map[disk.Op]error{
		disk.Mkdir: syscall.EROFS, disk.Create: syscall.EACCES, disk.Write: syscall.ENOSPC, disk.Sync: syscall.EIO, disk.Rename: syscall.EDQUOT,
	} {
		for _, on := range []string{"stop", "continue"} {
			c.Checkpoint.OnError = on
			dir := filepath.Join(t.TempDir(), "run")
			var reported []error
			restore := disk.Intercept(failing("step-00000004", op, cause))
			err := tryTrain(t.Context(), c, dir, func(p Progress) {
				if p.SaveError == nil {
					return
				}
				reported = append(reported, p.SaveError)
				require.NoError(t, checkpoint.Verify(filepath.Join(dir, checkpointsDir, "step-00000002")))
			})
			restore()
			log, readErr := os.ReadFile(filepath.Join(dir, logFile))
			require.NoError(t, readErr)
			if on == "stop" {
				require.ErrorIs(t, err, cause)
				require.ErrorContains(t, err, "writing the checkpoint of step 4: ")
				require.ErrorIs(t, err, ErrResumable)
				if errors.Is(cause, syscall.ENOSPC) || errors.Is(cause, syscall.EDQUOT) {
					require.ErrorContains(t, err, "step-00000002: free some space, then resume the run")
				} else {
					require.ErrorContains(t, err, "step-00000002: resume the run")
				}
				require.NoError(t, checkpoint.Verify(filepath.Join(dir, checkpointsDir, "step-00000002")))
				require.Contains(t, string(log), `"msg":"stopped"`)
				require.Empty(t, reported)
				trainIn(t, c, dir, func(Progress) {})
			} else {
				require.NoError(t, err)
				require.Len(t, reported, 1)
				require.ErrorIs(t, reported[0], cause)
				require.Contains(t, string(log), `"msg":"checkpoint failed"`)
			}
			requireSameFiles(t, want, dir, string(op)+", "+on)
		}
	}
}

// If an old checkpoint cannot be removed, the error says that the new one is intact.
func TestFailedRetention(t *testing.T) {
	c := savingConfig(t)
	want := uninterrupted(t, c)
	dir := filepath.Join(t.TempDir(), "run")
	restore := disk.Intercept(func(c disk.Change) error {
		if c.Op == disk.Rename && filepath.Base(c.Path) == "step-00000002" {
			return syscall.EIO
		}
		return c.Do()
	})
	err := tryTrain(t.Context(), c, dir, func(Progress) {})
	restore()
	require.ErrorIs(t, err, syscall.EIO)
	require.ErrorContains(t, err, "writing the checkpoint of step 4: it is intact, but older ones cannot be removed: ")
	require.ErrorContains(t, err, "the last checkpoint is "+filepath.Join(dir, checkpointsDir, "step-00000004"))
	require.NoError(t, checkpoint.Verify(filepath.Join(dir, checkpointsDir, "step-00000004")))
	trainIn(t, c, dir, func(Progress) {})
	requireSameFiles(t, want, dir, "after the fault")
}

// If the disk stays full, retention keeps the last intact checkpoint, and the run ends with
// an error, since its final checkpoint is missing.
func TestDiskThatStaysFull(t *testing.T) {
	c := savingConfig(t)
	c.Checkpoint.OnError = "continue"
	want := uninterrupted(t, c)
	dir := filepath.Join(t.TempDir(), "run")
	full := false
	restore := disk.Intercept(func(c disk.Change) error {
		full = full || strings.Contains(c.Path, "step-00000004")
		if full && strings.Contains(c.Path, checkpointsDir) && c.Op != disk.Remove {
			return syscall.ENOSPC
		}
		return c.Do()
	})
	reported := 0
	err := tryTrain(t.Context(), c, dir, func(p Progress) {
		if p.SaveError != nil {
			reported++
		}
	})
	restore()
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorContains(t, err, "writing the checkpoint of step 8: ")
	require.ErrorContains(t, err, "the last checkpoint is "+filepath.Join(dir, checkpointsDir, "step-00000002"))
	require.Equal(t, 2, reported, "of steps 4 and 6")
	require.NoError(t, checkpoint.Verify(filepath.Join(dir, checkpointsDir, "step-00000002")))
	trainIn(t, c, dir, func(Progress) {})
	requireSameFiles(t, want, dir, "with free space again")
}

// A record line that is written only half stops the run, whatever checkpoint.on_error says,
// but not the checkpoint that is being written. The run saves its state if there is space,
// and a resume continues without the line.
func TestFailedRecords(t *testing.T) {
	c := savingConfig(t)
	c.Checkpoint.OnError = "continue"
	want := uninterrupted(t, c)
	for name, fifth := range map[string]int{metricsFile: 5, timingFile: 5, "tfevents": 6} {
		dir := filepath.Join(t.TempDir(), "run")
		lines := 0
		restore := disk.Intercept(func(c disk.Change) error {
			if c.Op == disk.Write && strings.Contains(c.Path, name) {
				if lines++; lines >= fifth {
					return errors.Join(c.Half(), syscall.ENOSPC)
				}
			}
			if c.Op == disk.Sync && strings.Contains(c.Path, "step-00000004") {
				time.Sleep(10 * time.Millisecond)
			}
			return c.Do()
		})
		err := trainWithoutWaiting(t.Context(), c, dir, func(Progress) {})
		restore()
		require.ErrorIs(t, err, syscall.ENOSPC)
		require.ErrorContains(t, err, "the last checkpoint is "+filepath.Join(dir, checkpointsDir, "step-00000005"))
		trainIn(t, c, dir, func(Progress) {})
		requireSameCheckpoints(t, want, dir, name)
	}
}

// A slow disk does not delay training, and training does not change a checkpoint that is
// being written: the write of step 4 waits for the line of step 5, and still holds the state
// of step 4.
func TestCheckpointsAreWrittenBesideTheSteps(t *testing.T) {
	c := savingConfig(t)
	c.Checkpoint.KeepLast = 9
	want := uninterrupted(t, c)
	dir := filepath.Join(t.TempDir(), "run")
	line, reached := make(chan struct{}), sync.OnceFunc(func() {})
	restore := disk.Intercept(func(c disk.Change) error {
		switch {
		case c.Op == disk.Create && strings.HasSuffix(c.Path, checkpoint.ModelFile) && strings.Contains(c.Path, "step-00000004"):
			select {
			case <-line:
			case <-time.After(time.Minute):
				return errors.New("training waits for the disk")
			}
		case c.Op == disk.Write && filepath.Base(c.Path) == metricsFile:
			if text, err := os.ReadFile(c.Path); err == nil && strings.Count(string(text), "\n") == 4 {
				defer reached()
			}
		}
		return c.Do()
	})
	defer restore()
	reached = sync.OnceFunc(func() { close(line) })
	require.NoError(t, trainWithoutWaiting(t.Context(), c, dir, func(Progress) {}))
	requireSameFiles(t, want, dir, "beside the steps")

	timing, err := os.ReadFile(filepath.Join(dir, timingFile))
	require.NoError(t, err)
	for text := range strings.Lines(string(timing)) {
		var took struct {
			Step int      `json:"step"`
			Wait *float64 `json:"checkpoint_wait_s"`
			Copy *float64 `json:"checkpoint_copy_s"`
		}
		require.NoError(t, json.Unmarshal([]byte(text), &took))
		require.Equal(t, took.Step%2 == 0, took.Wait != nil && took.Copy != nil && *took.Copy > 0, text)
	}
}

// An interruption waits for the checkpoint being written and for its own.
func TestInterruptedWhileACheckpointIsWritten(t *testing.T) {
	c := savingConfig(t)
	dir := filepath.Join(t.TempDir(), "run")
	ctx, cancel := context.WithCancel(t.Context())
	fifth := make(chan struct{})
	defer disk.Intercept(func(c disk.Change) error {
		if c.Op == disk.Sync && strings.Contains(c.Path, "step-00000004") {
			<-fifth // steps continue
			cancel()
		}
		return c.Do()
	})()
	var last Progress
	require.ErrorIs(t, trainWithoutWaiting(ctx, c, dir, func(p Progress) {
		if last = p; p.Step == 5 {
			close(fifth)
		}
	}), context.Canceled)
	require.GreaterOrEqual(t, last.Step, 5)
	require.NoError(t, checkpoint.Verify(last.Checkpoint))
	list, err := checkpoint.List(filepath.Join(dir, checkpointsDir))
	require.NoError(t, err)
	require.Equal(t, last.Step, list[0].Step)
	require.Zero(t, list[len(list)-1].Step%2, "a regular checkpoint is kept for a rewind")
}

// The lines of a checkpoint's steps reach the disk before it: a power cut never leaves a
// checkpoint without them.
func TestRecordsComeFirst(t *testing.T) {
	c := savingConfig(t)
	dir := filepath.Join(t.TempDir(), "run")
	synced := map[string]string{} // the files after a power cut
	var mu sync.Mutex
	checked := 0
	defer disk.Intercept(func(c disk.Change) error {
		mu.Lock()
		defer mu.Unlock()
		switch name := filepath.Base(c.Path); {
		case c.Op == disk.Sync && strings.HasSuffix(name, ".jsonl"):
			text, err := os.ReadFile(c.Path)
			if err != nil {
				return err
			}
			synced[name] = string(text)
		case c.Op == disk.Rename && strings.HasPrefix(name, ".step-"):
			checked++
			for _, file := range []string{metricsFile, timingFile} {
				if strings.Count(synced[file], "\n") < 2*checked {
					return errors.New(file + " lacks lines of " + name)
				}
			}
		}
		return c.Do()
	})()
	require.NoError(t, trainWithoutWaiting(t.Context(), c, dir, func(Progress) {}))
	require.Equal(t, 4, checked)
}

// A resumed run removes unfinished checkpoints of a killed one, before it needs the space.
func TestResumeFreesUnfinished(t *testing.T) {
	c := savingConfig(t)
	dir := filepath.Join(t.TempDir(), "run")
	trainIn(t, c, dir, func(Progress) {})
	partial := filepath.Join(dir, checkpointsDir, ".step-00000009.partial-01234567")
	require.NoError(t, os.Mkdir(partial, 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(partial, checkpoint.ModelFile), nil, 0o666))
	trainIn(t, c, dir, func(Progress) {})
	require.NoDirExists(t, partial)
}

// If no files can be created, Start returns one sentence and leaves nothing behind, also in
// an existing folder.
func TestUnwritableFolder(t *testing.T) {
	c := savingConfig(t)
	for cause, existing := range map[error]string{syscall.EROFS: "", syscall.ENOSPC: "runs/one", syscall.EDQUOT: "runs"} {
		n := 0
		for stop := 0; ; stop++ {
			home := t.TempDir()
			require.NoError(t, os.MkdirAll(filepath.Join(home, existing), 0o777))
			n = -1
			restore := disk.Intercept(func(c disk.Change) error {
				if n++; n >= stop && c.Op != disk.Remove {
					return cause
				}
				return c.Do()
			})
			r, err := Start(t.Context(), Options{Config: c, Dir: filepath.Join(home, "runs", "one"), Backend: "emu", Threads: 1})
			restore()
			if err == nil {
				require.NoError(t, r.Close())
				break
			}
			require.ErrorIs(t, err, cause)
			require.NotContains(t, err.Error(), "\n")
			require.DirExists(t, filepath.Join(home, existing))
			left, err := fs.Glob(os.DirFS(filepath.Join(home, existing)), "*")
			require.NoError(t, err)
			require.Empty(t, left, "stopped at change %d", stop)
		}
		require.Greater(t, n, 10)
	}
}

// The advice for a full disk before the first checkpoint.
func TestFullBeforeTheFirstCheckpoint(t *testing.T) {
	f, err := create(t.TempDir(), tinyConfig(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	r := &Run{folder: f}
	for cause, advice := range map[error]string{
		syscall.ENOSPC: ": free some space, then resume the run",
		syscall.EDQUOT: ": free some space, then resume the run",
		syscall.EIO:    "",
	} {
		err := r.withLastCheckpoint(&os.PathError{Op: "write", Path: "metrics.jsonl", Err: cause})
		require.EqualError(t, err, "write metrics.jsonl: "+cause.Error()+"; there is no checkpoint yet"+advice)
	}
}

// A run whose folder is renamed does not change another run that takes its place. It resumes
// from its own last checkpoint in the renamed folder.
func TestRenamedFolder(t *testing.T) {
	c := savingConfig(t)
	want := uninterrupted(t, c)
	dir := filepath.Join(t.TempDir(), "run")
	moved := dir + "-moved"
	var other map[string]string
	err := tryTrain(t.Context(), c, dir, func(p Progress) {
		if p.Step == 3 {
			require.NoError(t, os.Rename(dir, moved))
			trainIn(t, c, dir, func(Progress) {})
			other = files(t, dir)
		}
	})
	require.ErrorContains(t, err, "the run folder "+dir+" was moved, removed or replaced")
	require.NotContains(t, err.Error(), "the last checkpoint is")
	require.Equal(t, other, files(t, dir))
	trainIn(t, c, moved, func(Progress) {})
	require.Equal(t, want, files(t, moved))
}
