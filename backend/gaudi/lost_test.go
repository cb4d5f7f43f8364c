//go:build gaudi && cgo && linux

package gaudi

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/run"
)

// A run whose device is lost ends with one sentence that names its last checkpoint. The
// checkpoint is undamaged, and a run on emu resumes from it.
func TestResumeAfterDeviceLoss(t *testing.T) {
	devices(t, "gaudi2", "1")
	text := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(text, []byte(strings.Repeat("to be or not to be, that is the question: ", 500)), 0o666))
	c := small("bf16")
	c.Train.Steps, c.Train.EvalEvery, c.Checkpoint.Every = 1000, 0, 1
	c.Data.Paths = []string{text}
	o := run.Options{Config: c, Dir: filepath.Join(t.TempDir(), "run"), Backend: "gaudi"}
	t.Setenv("STANDIN_LOST", "300") // in one of the first steps
	r, err := run.Start(t.Context(), o)
	require.NoError(t, err)
	steps := 0
	err = r.Train(t.Context(), func(run.Progress) { steps++ })
	require.NotZero(t, steps)
	require.ErrorIs(t, err, backend.ErrDeviceLost)
	require.ErrorContains(t, err, "synSynapseTerminated")
	require.ErrorContains(t, err, o.Dir)
	require.NoError(t, r.Close())

	o.Backend, o.Resume, o.Config.Train.Steps = "emu", true, steps+1
	r, err = run.Start(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, steps, r.Resumed)
	require.Empty(t, r.Skipped, "a checkpoint is damaged")
	require.NoError(t, r.Train(t.Context(), func(run.Progress) {}))
	require.NoError(t, r.Close())
}
