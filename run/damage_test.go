package run

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/checkpoint"
	"octet/safetensors"
	"octet/train"
)

// smoothRun trains c. With smoothConfig it has every kind of state: FP16 master weights, FP8
// moments, amax histories and channel maxima.
func smoothRun(t testing.TB, c train.Config, dir string) {
	t.Helper()
	r, err := Start(t.Context(), Options{Config: c, Dir: dir, Backend: "emu", Threads: 1})
	require.NoError(t, err)
	require.NoError(t, r.Train(t.Context(), func(Progress) {}))
	require.NoError(t, r.Close())
}

func smoothConfig(t testing.TB) train.Config {
	t.Helper()
	c := tinyConfig(t)
	c.Recipe, c.Train.Steps, c.Checkpoint.Every = "fp8-smooth", 4, 2
	require.NoError(t, c.Resolve())
	return c
}

// damage is a change that damages a checkpoint.
type damage struct {
	what string
	file string // the file that the error names
	do   func(t *testing.T, path string)
}

// contents returns the files of a folder by name.
func contents(t testing.TB, dir string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, name := range list(t, dir) {
		text, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		all[name] = text
	}
	return all
}

func list(t testing.TB, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// regions returns offsets at the beginning, middle and end of the parts of a file. The parts
// of safetensors are the length of the header, the header, and every tensor. For JSON it
// returns every eighth byte.
func regions(t *testing.T, name string, content []byte) (offsets []int) {
	t.Helper()
	if !strings.HasSuffix(name, ".safetensors") {
		for i := 0; i < len(content); i += 8 {
			offsets = append(offsets, i)
		}
		return append(offsets, len(content)-1)
	}
	f, err := safetensors.NewReader(bytes.NewReader(content), int64(len(content)))
	require.NoError(t, err)
	for i := range 8 {
		offsets = append(offsets, i)
	}
	for i := 8; i < int(f.Tensors()[0].Offset); i += 100 {
		offsets = append(offsets, i)
	}
	for _, x := range f.Tensors() {
		offsets = append(offsets, int(x.Offset), int(x.Offset+x.Size/2), int(x.Offset+x.Size-1))
	}
	return offsets
}

// kinds returns the damages of a file other than a changed byte.
func kinds(name string, whole, older, other map[string][]byte) (all []damage) {
	put := func(content []byte) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			require.NoError(t, os.WriteFile(filepath.Join(path, name), content, 0o666))
		}
	}
	add := func(what string, do func(t *testing.T, path string)) { all = append(all, damage{what, name, do}) }
	gone := func(t *testing.T, path string) { require.NoError(t, os.Remove(filepath.Join(path, name))) }
	content := whole[name]
	add("empty", put(nil))
	add("a byte too short", put(content[:len(content)-1]))
	add("a byte too long", put(append(bytes.Clone(content), 0)))
	add("twice", put(append(bytes.Clone(content), content...)))
	add("zeros, as a power cut leaves them", put(make([]byte, len(content))))
	add("removed", gone)
	add("a folder", func(t *testing.T, path string) {
		gone(t, path)
		require.NoError(t, os.Mkdir(filepath.Join(path, name), 0o777))
	})
	add("a link to its own bytes", func(t *testing.T, path string) {
		file := filepath.Join(path, name)
		require.NoError(t, os.Rename(file, file+".moved"))
		require.NoError(t, os.Symlink(name+".moved", file))
	})
	add("a link to nothing", func(t *testing.T, path string) {
		gone(t, path)
		require.NoError(t, os.Symlink("nothing", filepath.Join(path, name)))
	})
	if !bytes.Equal(older[name], content) { // the shape of the model is the same at every step
		add("of an older checkpoint", put(older[name]))
	}
	if !bytes.Equal(other[name], content) {
		add("of another run", put(other[name]))
	}
	for _, from := range slices.Sorted(maps.Keys(whole)) {
		if from != name {
			add("swapped with "+from, func(t *testing.T, path string) {
				put(whole[from])(t, path)
				require.NoError(t, os.WriteFile(filepath.Join(path, from), content, 0o666))
			})
		}
	}
	return all
}

// Any damage to the newest checkpoint of a run is detected before a byte of it is used, and
// the error names the file; the run resumes from the checkpoint before.
func TestDamageIsNamed(t *testing.T) {
	home := t.TempDir()
	c := smoothConfig(t)
	dir, otherDir := filepath.Join(home, "run"), filepath.Join(home, "other")
	smoothRun(t, c, dir)
	other := c
	other.Seed++
	smoothRun(t, other, otherDir)
	checkpoints := filepath.Join(dir, checkpointsDir)
	older, path := filepath.Join(checkpoints, "step-00000002"), filepath.Join(checkpoints, "step-00000004")
	whole := contents(t, path)
	require.Len(t, whole, 8) // with the files of the tokenizer
	others := contents(t, filepath.Join(otherDir, checkpointsDir, "step-00000004"))

	var changed, all []damage
	for _, name := range slices.Sorted(maps.Keys(whole)) {
		for _, at := range regions(t, name, whole[name]) {
			changed = append(changed, damage{fmt.Sprintf("bit %d of byte %d", at%8, at), name, func(t *testing.T, path string) {
				f, err := os.OpenFile(filepath.Join(path, name), os.O_WRONLY, 0)
				require.NoError(t, err)
				_, err = f.WriteAt([]byte{whole[name][at] ^ 1<<(at%8)}, int64(at))
				require.NoError(t, err)
				require.NoError(t, f.Close())
			}})
			if at > 0 && name != checkpoint.ManifestFile && at%5 == 0 {
				changed = append(changed, damage{fmt.Sprintf("cut to %d bytes", at), name, func(t *testing.T, path string) {
					require.NoError(t, os.Truncate(filepath.Join(path, name), int64(at)))
				}})
			}
		}
		all = append(all, kinds(name, whole, contents(t, older), others)...)
	}
	require.Greater(t, len(changed), 500, "every tensor of a run with FP8 state")

	restore := func() {
		for _, name := range list(t, path) {
			if _, ours := whole[name]; !ours {
				require.NoError(t, os.RemoveAll(filepath.Join(path, name)))
			}
		}
		for name, content := range whole {
			file := filepath.Join(path, name)
			if info, err := os.Lstat(file); err == nil && !info.Mode().IsRegular() {
				require.NoError(t, os.Remove(file))
			}
			if now, err := os.ReadFile(file); err == nil && bytes.Equal(now, content) {
				continue
			}
			// Not os.WriteFile: file systems sync after a file is truncated to zero.
			f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o666)
			require.NoError(t, err)
			_, err = f.Write(content)
			require.NoError(t, errors.Join(err, f.Truncate(int64(len(content))), f.Close()))
		}
	}
	refused := func(d damage, err error) {
		t.Helper()
		require.Error(t, err, "%s: %s", d.file, d.what)
		require.NotContains(t, err.Error(), "\n", "%s: %s", d.file, d.what)
		require.Less(t, len(err.Error()), 1000)
	}
	for i, d := range slices.Concat(changed, all) {
		d.do(t, path)
		_, err := OpenWeights(path, "")
		refused(d, err)
		// A manifest that is damaged in the entry of another file gives an error about that
		// file. For two swapped files, the error may name either.
		if d.file != checkpoint.ManifestFile && !strings.Contains(d.what, "swapped") {
			require.Contains(t, err.Error(), filepath.Join(path, d.file), d.what)
		}
		// model.init accepts the checkpoint if its weights and config.json are intact, even if
		// another file is damaged.
		if d.file == checkpoint.ModelFile || d.file == checkpoint.ConfigFile || d.file == checkpoint.ManifestFile && i >= len(changed) {
			_, _, err = checkpoint.OpenModel(path)
			refused(d, err)
		}
		restore()
	}
	// A resumed run reports the damaged checkpoint and resumes from the one before; a new run
	// does not start from it.
	for i, d := range all {
		d.do(t, path)
		newest, skipped, err := checkpoint.Newest(checkpoints)
		require.NoError(t, err)
		require.Equal(t, older, newest.Path, "%s: %s", d.file, d.what)
		require.NoError(t, newest.Close())
		require.Len(t, skipped, 1)
		refused(d, skipped[0].Damage)
		if i%8 == 0 { // a start is slow
			r, err := Start(t.Context(), Options{Config: c, Dir: dir, Resume: true, Backend: "emu", Threads: 1})
			require.NoError(t, err, "%s: %s", d.file, d.what)
			require.Equal(t, 2, r.Resumed)
			require.Equal(t, skipped, r.Skipped)
			require.NoError(t, r.Close())
		}
		w, err := OpenWeights(dir, "")
		require.NoError(t, err)
		require.Equal(t, older, w.Path)
		require.Len(t, w.Skipped, 1)
		require.NoError(t, w.Close())
		restore()
	}
	from := c
	from.Model.Init = path
	for _, d := range all {
		if d.file != checkpoint.ModelFile {
			continue
		}
		d.do(t, path)
		fresh := filepath.Join(home, "fresh")
		_, err := Start(t.Context(), Options{Config: from, Dir: fresh, Backend: "emu", Threads: 1})
		refused(d, err)
		require.NoDirExists(t, fresh)
		restore()
	}
	require.Equal(t, whole, contents(t, path))
}

// An intact checkpoint of another step or run stops a resume: an older checkpoint would be a
// guess.
func TestCheckpointOfAnotherPlace(t *testing.T) {
	home := t.TempDir()
	c := smoothConfig(t)
	dir, otherDir := filepath.Join(home, "run"), filepath.Join(home, "other")
	smoothRun(t, c, dir)
	other := c
	other.Seed++
	smoothRun(t, other, otherDir)
	newest := filepath.Join(dir, checkpointsDir, "step-00000004")
	resume := func() error {
		r, err := Start(t.Context(), Options{Config: c, Dir: dir, Resume: true, Backend: "emu", Threads: 1})
		if err == nil {
			err = r.Close()
		}
		return err
	}
	require.NoError(t, os.Rename(newest, newest+".kept"))
	require.NoError(t, os.CopyFS(newest, os.DirFS(filepath.Join(dir, checkpointsDir, "step-00000002"))))
	require.ErrorContains(t, resume(), "step-00000004: it contains the state of step 2")
	require.NoError(t, os.RemoveAll(newest))
	require.NoError(t, os.CopyFS(newest, os.DirFS(filepath.Join(otherDir, checkpointsDir, "step-00000004"))))
	require.ErrorContains(t, resume(), "step-00000004: it belongs to a run with seed 2, but the configuration has seed 1")
	require.NoError(t, os.RemoveAll(newest))
	require.NoError(t, os.Rename(newest+".kept", newest))
	require.NoError(t, resume())
}

// Resume never truncates, appends to or empties a file through a symlink.
func TestResumeFollowsNoLinks(t *testing.T) {
	c := smoothConfig(t)
	dir := filepath.Join(t.TempDir(), "run")
	smoothRun(t, c, dir)
	precious := filepath.Join(t.TempDir(), "precious")
	require.NoError(t, os.WriteFile(precious, []byte("of the user's\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, traceFile), nil, 0o600)) // of an earlier --profile
	for _, name := range []string{metricsFile, timingFile, logFile, traceFile, dataFile} {
		file := filepath.Join(dir, name)
		require.NoError(t, os.Rename(file, file+".kept"))
		require.NoError(t, os.Symlink(precious, file))
		_, err := Start(t.Context(), Options{Config: c, Dir: dir, Resume: true, Backend: "emu"})
		require.ErrorContains(t, err, name+" is not a regular file")
		require.NoError(t, os.Rename(file+".kept", file))
	}
	text, err := os.ReadFile(precious)
	require.NoError(t, err)
	require.Equal(t, "of the user's\n", string(text))

	// Checkpoints are not removed through a symlink either.
	checkpoints, elsewhere := filepath.Join(dir, checkpointsDir), filepath.Join(t.TempDir(), "elsewhere")
	require.NoError(t, os.Rename(checkpoints, elsewhere))
	require.NoError(t, os.Mkdir(filepath.Join(elsewhere, ".step-00000009.partial-1"), 0o700))
	before := list(t, elsewhere)
	require.NoError(t, os.Symlink(elsewhere, checkpoints))
	_, err = Start(t.Context(), Options{Config: c, Dir: dir, Resume: true, Backend: "emu"})
	require.ErrorContains(t, err, "checkpoints is a link")
	require.Equal(t, before, list(t, elsewhere))

	// A symlink to the whole run folder works.
	require.NoError(t, os.Remove(checkpoints))
	require.NoError(t, os.Rename(elsewhere, checkpoints))
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(dir, link))
	r, err := Start(t.Context(), Options{Config: c, Dir: link, Resume: true, Backend: "emu"})
	require.NoError(t, err)
	_, err = Start(t.Context(), Options{Config: c, Dir: dir, Resume: true, Backend: "emu"})
	require.ErrorContains(t, err, "is in use by another octet process")
	require.NoError(t, r.Close())
}

// Large files in place of small ones are not read completely.
func TestLongFiles(t *testing.T) {
	c := smoothConfig(t)
	dir := filepath.Join(t.TempDir(), "run")
	smoothRun(t, c, dir)
	start := func() error {
		r, err := Start(t.Context(), Options{Config: c, Dir: dir, Resume: true, Backend: "emu", Threads: 1})
		if err == nil {
			err = r.Close()
		}
		return err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	choices := filepath.Join(dir, choicesFile)
	require.NoError(t, os.WriteFile(choices, nil, 0o600))
	require.NoError(t, os.Truncate(choices, 1<<30))
	require.NoError(t, start(), "the device chooses again")

	require.NoError(t, os.Truncate(filepath.Join(dir, dataFile), 1<<30))
	require.ErrorContains(t, start(), "data.json: the file is far larger than the ")
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<28))
}

// A config.json of a larger model than its weights is refused before memory for the model is
// allocated.
func TestWeightsFitTheirConfig(t *testing.T) {
	c := smoothConfig(t)
	c.Model.Layers = 2
	dir := filepath.Join(t.TempDir(), "run")
	smoothRun(t, c, dir)
	from := filepath.Join(dir, checkpointsDir, "step-00000004")
	bare := t.TempDir()
	model, err := os.ReadFile(filepath.Join(from, checkpoint.ModelFile))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(bare, checkpoint.ModelFile), model, 0o600))
	put := func(change func(*checkpoint.Config)) {
		hf := train.HFConfig(c)
		change(&hf)
		text, err := json.Marshal(hf)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(bare, checkpoint.ConfigFile), text, 0o600))
	}
	put(func(*checkpoint.Config) {})
	w, err := OpenWeights(bare, "")
	require.NoError(t, err, "the config of the weights")
	require.NoError(t, w.Close())
	// More than there are, or fewer layers.
	const apart, limit = "config.json and the weights are of different models", "octet supports at most"
	for name, c := range map[string]struct {
		change func(*checkpoint.Config)
		want   string
	}{
		"layers":     {func(c *checkpoint.Config) { c.NumHiddenLayers = 1 << 24 }, limit},
		"a thousand": {func(c *checkpoint.Config) { c.NumHiddenLayers = 1 << 10 }, apart},
		"a layer":    {func(c *checkpoint.Config) { c.NumHiddenLayers++ }, apart},
		"one less":   {func(c *checkpoint.Config) { c.NumHiddenLayers-- }, apart},
		"vocabulary": {func(c *checkpoint.Config) { c.VocabSize++ }, apart},
		"all": {func(c *checkpoint.Config) {
			c.HiddenSize, c.IntermediateSize, c.NumHiddenLayers, c.VocabSize = 1<<24, 1<<24, 1<<24, 1<<24
		}, limit},
	} {
		put(c.change)
		_, err := OpenWeights(bare, "")
		require.ErrorContains(t, err, c.want, name)
	}
}
