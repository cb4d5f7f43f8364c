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

// Records that another program cuts, appends to, removes or replaces stop the run before
// a line goes where it cannot be read. Where the line cannot be written, the run saves its
// state; a checkpoint that finds the file gone is not written. --resume says what is lost.
func TestRecordsChangedFromOutside(t *testing.T) {
	c := savingConfig(t)
	c.Checkpoint.KeepLast = 8
	want := undisturbed(t, c)
	for what, test := range map[string]struct {
		do   func(name string) error
		want string
	}{
		"emptied": {func(name string) error { return os.Truncate(name, 0) }, "has 0 bytes and not "},
		"cut within a line": {func(name string) error {
			info, err := os.Stat(name)
			return errors.Join(err, os.Truncate(name, info.Size()-5))
		}, "another program has written to it or cut it"},
		"appended to": {func(name string) error {
			f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
			if err == nil {
				_, err = f.WriteString("x\n")
			}
			return errors.Join(err, f.Close())
		}, "another program has written to it or cut it"},
		"removed": {os.Remove, "is not there any more, or another file is"},
		"replaced": {func(name string) error {
			return errors.Join(os.Rename(name, name+".old"), os.WriteFile(name, nil, 0o600))
		}, "is not there any more"},
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
		require.NoError(t, r.Train(t.Context(), func(Progress) { r.saver.rest() }))
		require.NoError(t, r.Close())
		requireSameCheckpoints(t, want, dir, what)
	}
}

// A step whose records cannot be written is saved before the run stops, with the step
// that the devices were given after it.
func TestStateIsSavedWithoutRecords(t *testing.T) {
	c := savingConfig(t)
	c.Checkpoint.Every, c.Checkpoint.KeepLast = 100, 8
	want := undisturbed(t, c)
	lates() // registers emu-late, which is given a step before the result of the one before is known
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
		require.ErrorContains(t, err, test.name+" has 0 bytes and not ")
		saved := filepath.Join(dir, checkpointsDir, fmt.Sprintf("step-%08d", test.saved))
		require.ErrorContains(t, err, "; the last checkpoint is "+saved+", from which --resume --out "+dir+" goes on")
		r, err = Start(t.Context(), Options{Config: c, Dir: dir, Resume: true, Backend: "emu-spiky", Threads: 1})
		require.NoError(t, err)
		require.NotEmpty(t, r.Lost)
		require.NoError(t, r.Train(t.Context(), func(Progress) {}))
		require.NoError(t, r.Close())
		requireSameCheckpoints(t, want, dir, test.name)
	}
}

// Where the checkpoint cannot be written either, the records' error comes first.
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

// requireSameCheckpoints compares the checkpoints of a run, but not its records.
func requireSameCheckpoints(t *testing.T, want map[string]string, dir, when string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, metricsFile))
	require.NoError(t, err)
	want = maps.Clone(want)
	want[metricsFile] = string(text)
	requireSameFiles(t, want, dir, when)
}
