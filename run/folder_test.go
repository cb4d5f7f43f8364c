package run

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	_ "octet/backend/emu"
	"octet/data"
	"octet/internal/disk"
	"octet/train"
)

// Discard leaves the folders as Create found them.
func TestDiscard(t *testing.T) {
	home := t.TempDir()
	t.Chdir(home)
	there := func() (list []string) {
		require.NoError(t, filepath.WalkDir(".", func(path string, _ os.DirEntry, err error) error {
			list = append(list, path)
			return err
		}))
		return list
	}
	before := there()
	for _, dir := range []string{"a", filepath.Join("a", "b", "c"), filepath.Join(home, "a", "b"), filepath.Join(".", "x", "..", "y")} {
		f, err := create(dir, train.Default())
		require.NoError(t, err)
		require.FileExists(t, configPath(dir))
		require.NoError(t, f.recordData(&data.Corpus{}))
		require.NoError(t, f.discard())
		require.Equal(t, before, there(), dir)
	}
	// A parent that another process uses meanwhile stays.
	f, err := create(filepath.Join("runs", "one"), train.Default())
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join("runs", "two"), 0o700))
	require.NoError(t, f.discard())
	require.Equal(t, append(before, "runs", filepath.Join("runs", "two")), there())
}

// Create beside a Discard of the same folder is refused, or makes a complete run.
func TestDiscardBesideCreate(t *testing.T) {
	for _, made := range []bool{true, false} {
		dir := t.TempDir()
		if made {
			dir = filepath.Join(dir, "run")
		}
		f, err := create(dir, train.Default())
		require.NoError(t, err)
		require.NoError(t, f.recordData(&data.Corpus{}))
		inside, begun := false, (*folder)(nil)
		restore := disk.Intercept(func(c disk.Change) error {
			if inside || begun != nil {
				return c.Do()
			}
			inside = true
			if another, err := create(dir, train.Default()); err == nil {
				begun = another
				require.NoError(t, begun.recordData(&data.Corpus{}))
			}
			inside = false
			return c.Do()
		})
		err = f.discard()
		restore()
		require.NoError(t, err)
		if begun != nil {
			require.FileExists(t, configPath(dir))
			require.FileExists(t, begun.path(dataFile))
			require.NoError(t, begun.discard())
		}
		again, err := create(dir, train.Default())
		require.NoError(t, err)
		require.NoError(t, again.discard())
	}
}

// A process that is killed while it discards a run leaves a run, or a folder for a new one.
func TestDiscardKilled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	f, err := create(dir, train.Default())
	require.NoError(t, err)
	require.NoError(t, f.recordData(&data.Corpus{}))
	changes := 0
	restore := disk.Intercept(func(c disk.Change) error {
		changes++
		if !Exists(dir) {
			require.NoError(t, vacant(dir))
		}
		return c.Do()
	})
	require.NoError(t, f.discard())
	restore()
	require.Greater(t, changes, 2)
}

func TestCreateInUsedFolder(t *testing.T) {
	dir := t.TempDir()
	f, err := create(dir, train.Default())
	require.NoError(t, err)
	_, err = create(dir, train.Default())
	require.ErrorContains(t, err, "in use")
	require.NoError(t, f.Close())
	_, err = create(dir, train.Default())
	require.ErrorContains(t, err, "already holds a run")
	for _, leftover := range []string{metricsFile, checkpointsDir + "/step-00000002"} {
		dir := t.TempDir()
		require.NoError(t, os.MkdirAll(filepath.Join(dir, leftover), 0o700))
		_, err = create(dir, train.Default())
		name, _, _ := strings.Cut(leftover, "/")
		require.ErrorContains(t, err, "holds "+name+" but no config.toml")
		require.NotErrorIs(t, err, ErrRunExists)
		require.NoFileExists(t, configPath(dir))
	}
}

// Create accepts an empty folder of checkpoints, such as a mounted volume. It refuses a
// symlink, which Resume would refuse.
func TestCreateBesideEmptyCheckpoints(t *testing.T) {
	dir := t.TempDir()
	checkpoints := filepath.Join(dir, checkpointsDir)
	require.NoError(t, os.MkdirAll(filepath.Join(checkpoints, "lost+found"), 0o700))
	f, err := create(dir, train.Default())
	require.NoError(t, err)
	require.NoError(t, f.discard())
	require.DirExists(t, filepath.Join(checkpoints, "lost+found"))

	require.NoError(t, os.RemoveAll(checkpoints))
	if err := os.Symlink(t.TempDir(), checkpoints); err != nil {
		t.Skipf("no symbolic links here: %v", err)
	}
	_, err = create(dir, train.Default())
	require.ErrorContains(t, err, "holds checkpoints but no config.toml")
}

// Create refuses a folder with other files and leaves it as it is. It accepts hidden files,
// among them a left-over lock.
func TestCreateAmongFiles(t *testing.T) {
	for _, name := range []string{"notes.txt", dataFile, logFile, "folder"} {
		dir := t.TempDir()
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		_, err := create(dir, train.Default())
		require.ErrorContains(t, err, "holds \""+name+"\", which is not part of a run")
		require.NotErrorIs(t, err, ErrRunExists)
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, entries, 1)
	}
	dir := t.TempDir()
	for _, name := range []string{lockFile, ".DS_Store", ".config.toml.partial", "slurm-7.out"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "lost+found"), 0o700))
	f, err := create(dir, train.Default())
	require.NoError(t, err)
	require.NoError(t, f.discard())
	require.DirExists(t, filepath.Join(dir, "lost+found"))
	require.FileExists(t, filepath.Join(dir, ".DS_Store"))
	require.FileExists(t, filepath.Join(dir, "slurm-7.out"))
}

// A run's paths mean the same from any folder.
func TestPathsAreAbsolute(t *testing.T) {
	home := t.TempDir()
	t.Chdir(home)
	home, err := os.Getwd() // without links
	require.NoError(t, err)
	c, err := NewConfig("", `data.paths=["a", "`+filepath.ToSlash(home)+`/b"]`, "model.init=w")
	require.NoError(t, err)
	require.Equal(t, []string{filepath.Join(home, "a"), filepath.Join(home, "b")}, c.Data.Paths)
	require.Equal(t, filepath.Join(home, "w"), c.Model.Init)
	t.Setenv("HOME", home)
	t.Setenv("USERPROFILE", home)
	c, err = NewConfig("", `data.paths=["~/a", "~"]`, "model.init=~b")
	require.NoError(t, err)
	require.Equal(t, []string{filepath.Join(home, "a"), home}, c.Data.Paths)
	require.Equal(t, "~b", filepath.Base(c.Model.Init), "another user's home is for the shell")
	c, err = NewConfig("")
	require.NoError(t, err)
	require.Empty(t, c.Data.Paths)
	require.Empty(t, c.Model.Init)
}

// A run may lie in the folder of its text: the corpus excludes the files of the run.
func TestRunAmongItsText(t *testing.T) {
	c := tinyConfig(t)
	alone, among := filepath.Join(t.TempDir(), "run"), filepath.Join(filepath.Dir(c.Data.Paths[0]), "runs", "one")
	c.Data.Paths = []string{filepath.Dir(c.Data.Paths[0])}
	train := func(dir string, steps int) *Run {
		c.Train.Steps = steps
		r, err := Start(t.Context(), Options{Config: c, Dir: dir, Resume: exists(dir), Backend: "emu", Threads: 1})
		require.NoError(t, err)
		require.NoError(t, r.Train(t.Context(), func(Progress) {}))
		require.NoError(t, r.Close())
		return r
	}
	want := train(alone, 4).Corpus.Info
	require.Equal(t, want.SHA256, train(among, 2).Corpus.Info.SHA256)
	require.Equal(t, want.SHA256, train(among, 4).Corpus.Info.SHA256, "resumed")

	c.Data.Paths = []string{among}
	_, err := Start(t.Context(), Options{Config: c, Dir: filepath.Join(t.TempDir(), "run"), Backend: "emu", Threads: 1})
	require.ErrorContains(t, err, "is a run folder")
}
