package run

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/checkpoint"
	"octet/data"
	"octet/internal/disk"
	"octet/nn"
	"octet/train"
)

// Start writes nothing while it reads the text and checks the memory: a start that is killed
// there leaves no folder that the next start would refuse.
func TestFolderIsMadeLate(t *testing.T) {
	c := tinyConfig(t)
	require.NoError(t, os.WriteFile(c.Data.Paths[0], append(text(20_000), 0), 0o600))
	dir := filepath.Join(t.TempDir(), "run")
	defer disk.Intercept(func(c disk.Change) error {
		t.Errorf("%s %s", c.Op, c.Path)
		return c.Do()
	})()
	_, err := Start(t.Context(), Options{Config: c, Dir: dir, Backend: "emu"})
	require.ErrorContains(t, err, "zero byte at offset 20000")

	own := c
	own.Network = func(*nn.Base, train.Config) (train.Network, error) { return nil, errors.New("not called") }
	_, err = Start(t.Context(), Options{Config: own, Dir: dir, Backend: "emu"})
	require.ErrorIs(t, err, train.ErrOwnNetwork)

	c.Train.Ranks = train.MaxRanks + 1
	_, err = Start(t.Context(), Options{Config: c, Dir: dir, Backend: "emu"})
	require.ErrorContains(t, err, "train.ranks = 1025 is more than a run can have")
	c.Train.Ranks = 1

	// Start does not read the corpus for a folder that another run uses.
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.WriteFile(configPath(dir), nil, 0o600))
	_, err = Start(t.Context(), Options{Config: c, Dir: dir, Backend: "emu"})
	require.ErrorIs(t, err, ErrRunExists)
}

// Ctrl-C does not wait until a large text is read.
func TestOpenCorpusIsCancelled(t *testing.T) {
	c := tinyConfig(t)
	require.NoError(t, os.WriteFile(c.Data.Paths[0], text(30_000_000), 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err := OpenCorpus(ctx, c, nil)
	require.ErrorIs(t, err, context.Canceled)
}

// Start refuses a run whose checkpoints are missing, and leaves it unchanged. Without a
// checkpoint in run.log the run starts.
func TestCheckpointsNotMounted(t *testing.T) {
	c := savingConfig(t)
	want := uninterrupted(t, c)
	dir := filepath.Join(t.TempDir(), "run")
	trainIn(t, c, dir, func(Progress) {})
	checkpoints, away := filepath.Join(dir, checkpointsDir), filepath.Join(t.TempDir(), "away")
	require.NoError(t, os.Rename(checkpoints, away))
	before := contents(t, dir)
	for _, what := range []string{"missing", "empty"} {
		if what == "empty" {
			require.NoError(t, os.Mkdir(checkpoints, 0o700))
		}
		_, err := Start(t.Context(), Options{Config: c, Dir: dir, Resume: true, Backend: "emu"})
		require.ErrorContains(t, err, "records the checkpoint of step 8, but "+checkpoints+" holds none: mount its file system", what)
		require.NotContains(t, err.Error(), "\n")
		for name, text := range before {
			now, err := os.ReadFile(filepath.Join(dir, name))
			require.NoError(t, err)
			require.Equal(t, string(text), string(now), name)
		}
	}
	require.NoError(t, os.Remove(checkpoints))
	require.NoError(t, os.Rename(away, checkpoints))
	trainIn(t, c, dir, func(Progress) {})
	requireSameFiles(t, want, dir, "mounted again")

	// The advice of the error restarts the run.
	require.NoError(t, os.RemoveAll(checkpoints))
	require.NoError(t, os.Remove(filepath.Join(dir, logFile)))
	trainIn(t, c, dir, func(Progress) {})
	requireSameFiles(t, want, dir, "from step 0")
}

func TestLastSaved(t *testing.T) {
	log := filepath.Join(t.TempDir(), logFile)
	for text, want := range map[string]int{
		"": 0,
		`{"msg":"start","step":0}` + "\n" + `{"msg":"checkpoint failed","step":4}` + "\n":                              0,
		`{"msg":"checkpoint","step":4}` + "\n" + `{"msg":"checkpoint","step":8}` + "\n" + `{"msg":"stopped","step":9}`: 8,
		"\x00\x00\x00\n" + `{"msg":"checkpoint","step":4}` + "\n" + `{"msg":"checkpoint","st`:                          4,
		string(make([]byte, 200_000)) + `{"msg":"checkpoint","step":4}` + "\n":                                         0,
		`{"msg":"a` + string(text(200_000)) + "\n" + `{"msg":"checkpoint","step":7}`:                                   7,
		`{"msg":"hint","text":"\"checkpoint\"","step":3}` + "\n":                                                       0,
	} {
		require.NoError(t, os.WriteFile(log, []byte(text), 0o600))
		step, err := lastSaved(log)
		require.NoError(t, err)
		require.Equal(t, want, step, "%.80q", text)
	}
	step, err := lastSaved(log + "x")
	require.NoError(t, err)
	require.Zero(t, step)
}

// A request during a step saves the state after it, in addition to the regular checkpoints,
// and changes nothing else. Several requests before a checkpoint give one checkpoint.
func TestRequestedCheckpoint(t *testing.T) {
	c := savingConfig(t)
	c.Checkpoint.KeepLast = 3
	want := uninterrupted(t, c)
	dir := filepath.Join(t.TempDir(), "run")
	requests := make(chan os.Signal, 1)
	r, err := Start(t.Context(), Options{Config: c, Dir: dir, Backend: "emu-spiky", Threads: 1, Save: requests})
	require.NoError(t, err)
	var requested []int
	require.NoError(t, r.Train(t.Context(), func(p Progress) {
		if p.Requested {
			requested = append(requested, p.Step)
		}
		r.saver.wait()
		switch p.Step {
		case 4, 6:
			for range 3 {
				select {
				case requests <- os.Interrupt:
				default:
				}
			}
		case 5:
			require.NoError(t, checkpoint.Verify(filepath.Join(dir, checkpointsDir, "step-00000005")))
		}
	}))
	require.NoError(t, r.Close())
	require.Equal(t, []int{5, 7}, requested)
	requireSameFiles(t, want, dir, "with requests")
}

// A resumed run takes no other configuration, but for its length, and stays as it is.
func TestResumeWithAnotherConfig(t *testing.T) {
	c := tinyConfig(t)
	c.Train.Steps = 1
	dir := filepath.Join(t.TempDir(), "run")
	r, err := Start(t.Context(), Options{Config: c, Dir: dir, Backend: "emu"})
	require.NoError(t, err)
	require.NoError(t, r.Close())
	require.True(t, Exists(dir))
	before := contents(t, dir)
	c.Train.Steps, c.Optimizer.LR = 2, c.Optimizer.LR/2
	_, err = Start(t.Context(), Options{Config: c, Dir: dir, Resume: true, Backend: "emu"})
	require.ErrorContains(t, err, "holds a run with another configuration: optimizer.lr is ")
	require.ErrorContains(t, err, "only train.steps, train.ranks, train.tensor_parallel, train.zero_stage, train.micro_batch and train.accumulate may change")
	require.Equal(t, before, contents(t, dir))

	_, err = Start(t.Context(), Options{Config: c, Dir: filepath.Join(t.TempDir(), "absent"), Resume: true, Backend: "emu"})
	require.ErrorContains(t, err, "absent does not exist")
	_, err = Start(t.Context(), Options{Config: c, Backend: "emu"})
	require.ErrorContains(t, err, "Options.Dir is empty")
}

// Without a Go installation, octet's source or data.paths there is no text.
func TestNoText(t *testing.T) {
	c := tinyConfig(t)
	c.Data.Paths = nil
	t.Setenv("PATH", "")
	t.Setenv("GOROOT", "")
	_, _, err := OpenCorpus(t.Context(), c, nil)
	require.ErrorIs(t, err, data.ErrNoGo)
	require.ErrorContains(t, err, "data.paths is empty: name a text to train on")
}
