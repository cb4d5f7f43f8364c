package run

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Records that another program cuts, appends to, removes or replaces stop the run before
// a line goes where it cannot be read, and before a checkpoint vouches for it; --resume
// says what is lost.
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
		require.ErrorContains(t, err, "step-00000004", what)

		r, err := Start(t.Context(), Options{Config: c, Dir: dir, Resume: true, Backend: "emu-spiky", Threads: 1})
		require.NoError(t, err, what)
		require.Equal(t, 4, r.Resumed, what)
		lost := what == "emptied" || what == "removed" || what == "replaced"
		require.Equal(t, lost, len(r.Lost) > 0, what)
		require.NoError(t, r.Train(t.Context(), func(Progress) { r.saver.rest() }))
		require.NoError(t, r.Close())
		if !lost {
			requireSameFiles(t, want, dir, what)
		}
	}
}
