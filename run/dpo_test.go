package run

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/data"
	"octet/train"
)

// A run of train.objective = "dpo" begins at ln 2, records accuracy and margin, and, interrupted
// twice, has the metrics of an uninterrupted one.
func TestDPO(t *testing.T) {
	c := tinyConfig(t)
	c.Data.Paths, c.Train.Objective = []string{preparedFolder(t, data.KindPreference)}, train.ObjectiveDPO
	c.Recipe, c.Train.Steps, c.Train.EvalEvery, c.Checkpoint.Every = "fp8-smooth", 6, 2, 100
	c.Train.Ranks, c.Train.ZeroStage = 2, 1
	require.NoError(t, c.Resolve())
	recorded := func(interrupt ...int) string {
		dir := filepath.Join(t.TempDir(), "run")
		for _, at := range append(interrupt, c.Train.Steps) {
			ctx, cancel := context.WithCancel(t.Context())
			var reported []int64
			r, err := Start(ctx, Options{
				Config: c, Dir: dir, Resume: exists(dir), Backend: "emu", Threads: 1,
				Reference: func(done, all int64) { reported = append(reported, done, all) },
			})
			require.NoError(t, err)
			require.Equal(t, r.Resumed == 0, r.Pairs.Pairs > 0)
			require.Equal(t, r.Resumed == 0, len(reported) > 0)
			err = r.Train(ctx, func(p Progress) {
				if p.Step == at {
					cancel()
				}
			})
			if at < c.Train.Steps {
				require.ErrorIs(t, err, context.Canceled)
			} else {
				require.NoError(t, err)
			}
			require.NoError(t, r.Close())
			cancel()
		}
		text, err := os.ReadFile(filepath.Join(dir, metricsFile))
		require.NoError(t, err)
		return string(text)
	}
	want := recorded()
	require.Equal(t, want, recorded(1, 3))
	first, _, _ := strings.Cut(want, "\n")
	require.Contains(t, first, `"loss":0.6931471805599453,`)
	require.Contains(t, first, `"preference":{"accuracy":0,"margin":0}`)
	require.Equal(t, 3, strings.Count(want, `"val_preference":{"accuracy":`))
}

// Cancelled while the reference is measured, Start leaves no folder.
func TestDPOReferenceIsCancelled(t *testing.T) {
	c := tinyConfig(t)
	c.Data.Paths, c.Train.Objective = []string{preparedFolder(t, data.KindPreference)}, train.ObjectiveDPO
	dir := filepath.Join(t.TempDir(), "run")
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Start(ctx, Options{Config: c, Dir: dir, Backend: "emu", Threads: 1, Reference: func(done, _ int64) {
		if done > 1 {
			cancel()
		}
	}})
	require.ErrorIs(t, err, context.Canceled)
	require.NoDirExists(t, dir)
}
