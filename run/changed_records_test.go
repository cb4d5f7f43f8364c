package run

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/internal/disk"
)

// Records that another program truncates, appends to, removes or replaces stop the run before
// it writes a line that cannot be read. If a line cannot be written, the run saves its state;
// if the file is gone, it writes no checkpoint. --resume reports the lost lines.
func TestRecordsChangedFromOutside(t *testing.T) {
	c := savingConfig(t)
	c.Checkpoint.KeepLast = 8
	want := uninterrupted(t, c)
	for what, test := range map[string]struct {
		do   func(name string) error
		want string
	}{
		"emptied": {func(name string) error { return os.Truncate(name, 0) }, "has 0 bytes, expected "},
		"cut within a line": {func(name string) error {
			info, err := os.Stat(name)
			return errors.Join(err, os.Truncate(name, info.Size()-5))
		}, "another program has written to it or truncated it"},
		"appended to": {func(name string) error {
			f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
			if err == nil {
				_, err = f.WriteString("x\n")
			}
			return errors.Join(err, f.Close())
		}, "another program has written to it or truncated it"},
		"removed": {os.Remove, "was removed or replaced: put the original file back"},
		"replaced": {func(name string) error {
			return errors.Join(os.Rename(name, name+".old"), os.WriteFile(name, nil, 0o600))
		}, "was removed or replaced"},
	} {
		dir := filepath.Join(t.TempDir(), "run")
		err := tryTrain(t.Context(), c, dir, func(p Progress) {
			if p.Step == 5 {
				require.NoError(t, test.do(filepath.Join(dir, metricsFile)))
			}
		})
		require.ErrorContains(t, err, metricsFile, what)
		require.ErrorContains(t, err, test.want, what)
		gone := what == "removed" || what == "replaced"
		from := 6
		if gone {
			from = 4
		}
		require.ErrorContains(t, err, fmt.Sprintf("the last checkpoint is %s", filepath.Join(dir, checkpointsDir, fmt.Sprintf("step-%08d", from))), what)

		r, err := Start(t.Context(), Options{Config: c, Dir: dir, Resume: true, Backend: "emu-spiky", Threads: 1})
		require.NoError(t, err, what)
		require.Equal(t, from, r.Resumed, what)
		require.NotEmpty(t, r.Lost, what)
		require.NoError(t, r.Train(t.Context(), func(Progress) { r.saver.wait() }))
		require.NoError(t, r.Close())
		requireSameCheckpoints(t, want, dir, what)
	}
}

// If the records of a step cannot be written, the run saves the state before it stops,
// including a step that is queued ahead.
func TestStateIsSavedWithoutRecords(t *testing.T) {
	c := savingConfig(t)
	c.Checkpoint.Every, c.Checkpoint.KeepLast = 100, 8
	want := uninterrupted(t, c)
	lates() // registers emu-late, whose steps are queued ahead
	for _, test := range []struct {
		name, backend string
		saved         int
	}{{metricsFile, "emu-spiky", 4}, {timingFile, "emu-spiky", 4}, {metricsFile, "emu-late", 5}} {
		dir := filepath.Join(t.TempDir(), "run")
		r, err := Start(t.Context(), Options{Config: c, Dir: dir, Backend: test.backend, Threads: 1})
		require.NoError(t, err)
		err = r.Train(t.Context(), func(p Progress) {
			if p.Step == 3 {
				require.NoError(t, os.Truncate(filepath.Join(dir, test.name), 0))
			}
		})
		require.NoError(t, r.Close())
		require.ErrorContains(t, err, test.name+" has 0 bytes, expected ")
		saved := filepath.Join(dir, checkpointsDir, fmt.Sprintf("step-%08d", test.saved))
		require.ErrorContains(t, err, "; the last checkpoint is "+saved+": resume the run")
		r, err = Start(t.Context(), Options{Config: c, Dir: dir, Resume: true, Backend: "emu-spiky", Threads: 1})
		require.NoError(t, err)
		require.NotEmpty(t, r.Lost)
		require.NoError(t, r.Train(t.Context(), func(Progress) {}))
		require.NoError(t, r.Close())
		requireSameCheckpoints(t, want, dir, test.name)
	}
}

// If the checkpoint cannot be written either, the error of the records comes first.
func TestNeitherRecordsNorState(t *testing.T) {
	c := savingConfig(t)
	c.Checkpoint.Every = 100
	dir := filepath.Join(t.TempDir(), "run")
	restore := func() {}
	err := tryTrain(t.Context(), c, dir, func(p Progress) {
		if p.Step == 3 {
			restore = disk.Intercept(func(disk.Change) error { return syscall.ENOSPC })
		}
	})
	restore()
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.Regexp(t, `(?s)^no space left on device\n.*writing the checkpoint of step [45]: .*; there is no checkpoint yet: free some space`, err.Error())
}

// requireSameCheckpoints compares the checkpoints of a run and ignores its records.
func requireSameCheckpoints(t *testing.T, want map[string]string, dir, when string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, metricsFile))
	require.NoError(t, err)
	want = maps.Clone(want)
	want[metricsFile] = string(text)
	requireSameFiles(t, want, dir, when)
}
