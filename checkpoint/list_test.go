package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"octet/internal/disk"

	"github.com/stretchr/testify/require"
)

// TestVerifyNoticesEveryByte changes each byte of each file, and its length.
// Verify must return an error that names the file.
func TestVerifyNoticesEveryByte(t *testing.T) {
	for _, path := range []string{save(t, t.TempDir(), 3), saveShards(t, t.TempDir(), 3, 3)} {
		verifyNoticesEveryByte(t, path)
	}
}

func verifyNoticesEveryByte(t *testing.T, path string) {
	require.NoError(t, Verify(path))
	for _, name := range names(t, path) {
		file := filepath.Join(path, name)
		whole, err := os.ReadFile(file)
		require.NoError(t, err)
		put := func(b []byte) { require.NoError(t, os.WriteFile(file, b, 0o666)) }
		f, err := os.OpenFile(file, os.O_WRONLY, 0)
		require.NoError(t, err)
		for i := range whole {
			_, err := f.WriteAt([]byte{whole[i] ^ 1<<(i%8)}, int64(i))
			require.NoError(t, err)
			damage := Verify(path)
			_, err = f.WriteAt(whole[i:i+1], int64(i))
			require.NoError(t, err)
			require.Error(t, damage, "%s: byte %d of %q", name, i, whole)
			if name != ManifestFile { // a changed checksum or size in the manifest looks like a changed file
				require.ErrorContains(t, damage, name+": its bytes have changed")
			}
		}
		require.NoError(t, f.Close())
		for n := 0; n < len(whole); n += 16 {
			put(whole[:n])
			require.ErrorContains(t, Verify(path), name)
		}
		put(append(bytes.Clone(whole), '\n'))
		require.ErrorContains(t, Verify(path), name)
		require.NoError(t, os.Remove(file))
		require.ErrorContains(t, Verify(path), name)
		require.NoError(t, os.Mkdir(file, 0o777))
		require.ErrorContains(t, Verify(path), name)
		require.NoError(t, os.Remove(file))
		put(whole)
		require.NoError(t, Verify(path))
	}
}

func TestParseManifestRefuses(t *testing.T) {
	sum := strings.Repeat("0", 64)
	file := func(name string) string { return fmt.Sprintf(`{"name":%q,"size":1,"sha256":%q}`, name, sum) }
	list := func(names ...string) string {
		for i := range names {
			names[i] = file(names[i])
		}
		return `{"format":"octet-checkpoint","version":1,"files":[` + strings.Join(names, ",") + `]}`
	}
	sharded := func(names ...string) string {
		return strings.Replace(list(slices.Clone(names)...), `"version":1`, `"version":2`, 1)
	}
	for _, c := range []struct{ text, want string }{
		{``, "not valid JSON"},
		{`[]`, "not valid JSON"},
		{strings.Repeat(`[`, 100_000), "not valid JSON"},
		{`{}`, `format = "": expected "octet-checkpoint"`},
		{`{"format":"octet-checkpoint","version":3}`, "version = 3: this octet reads versions 1 and 2"},
		{`{"format":"octet-checkpoint","version":2}`, "lists 0 files"},
		{sharded(ConfigFile, StateFile), `lists 2 files: expected ["config.json" "state.json"] and 1 to 99999 shards`},
		{sharded(StateFile, ConfigFile, shardName(0, 1)), `lists "state.json": expected "config.json"`},
		{sharded(ConfigFile, StateFile, shardName(0, 2)), `lists "shard-00000-of-00002.safetensors": expected "shard-00000-of-00001.safetensors"`},
		{sharded(ConfigFile, StateFile, shardName(0, 2), shardName(0, 2)), `expected "shard-00001-of-00002.safetensors"`},
		{sharded(ConfigFile, StateFile, shardName(1, 2), shardName(0, 2)), `expected "shard-00000-of-00002.safetensors"`},
		{sharded(ConfigFile, StateFile, "../"+shardName(0, 1)), `lists "../shard-00000-of-00001.safetensors"`},
		{sharded(wholeFiles...), `lists "model.safetensors": expected "config.json"`},
		{sharded(ConfigFile, StateFile, shardName(0, 1)), "its bytes have changed"}, // valid, but not the encoding that Finish writes
		{`{"format":"octet-checkpoint","version":2,"files":[` + strings.Repeat(`{},`, maxRanks+2) + `{}]}`, "lists 100002 files"},
		{list(), "lists 0 files"},
		{list(ModelFile, ConfigFile, OptimizerFile, "../../etc/passwd"), `lists "../../etc/passwd": expected "state.json"`},
		{list(ModelFile, ModelFile, OptimizerFile, StateFile), `lists "model.safetensors": expected "config.json"`},
		{list(ModelFile, ConfigFile, OptimizerFile, StateFile, "more"), "lists 5 files"},
		{list(ModelFile, ConfigFile, OptimizerFile, StateFile), "its bytes have changed"}, // valid, but not the encoding that Save writes
	} {
		_, err := parseManifest([]byte(c.text))
		require.ErrorContains(t, err, c.want, "%.100s", c.text)
		require.NotContains(t, err.Error(), "\n")
	}
}

func TestListAndNewest(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "checkpoints")
	list, err := List(dir)
	require.NoError(t, err)
	require.Empty(t, list)
	_, skipped, err := Newest(dir)
	require.ErrorIs(t, err, ErrNone)
	require.Empty(t, skipped)

	for _, step := range []int{9, 100, 20, 123456789, 0} {
		save(t, dir, step)
	}
	for _, other := range []string{"step-9", "step-000000010", "step--0000001", "step-0000001x", ".step-00000030.partial-0", "best"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, other), 0o777))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "step-00000050"), nil, 0o666))
	list, err = List(dir)
	require.NoError(t, err)
	var steps []int
	for _, e := range list {
		require.Equal(t, e.Step == 50, e.Damage != nil)
		steps = append(steps, e.Step)
	}
	require.Equal(t, []int{123456789, 100, 50, 20, 9, 0}, steps)

	c, skipped, err := Newest(dir)
	require.NoError(t, err)
	require.Empty(t, skipped)
	require.Equal(t, list[0].Path, c.Path)
	require.NoError(t, c.Close())

	flip(t, filepath.Join(list[0].Path, OptimizerFile)) // sizes match, checksums do not
	require.NoError(t, os.Truncate(filepath.Join(list[1].Path, ModelFile), 9))
	c, skipped, err = Newest(dir)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "step-00000020"), c.Path)
	require.NoError(t, c.Close())
	require.Len(t, skipped, 3)
	require.ErrorContains(t, skipped[0].Damage, "optimizer.safetensors: its bytes have changed")
	require.ErrorContains(t, skipped[1].Damage, "model.safetensors: 9 bytes, the manifest says")
	require.Equal(t, 50, skipped[2].Step)

	for _, e := range list[3:] {
		require.NoError(t, os.Remove(filepath.Join(e.Path, ManifestFile)))
	}
	_, skipped, err = Newest(dir)
	require.ErrorIs(t, err, ErrNone)
	require.Len(t, skipped, 6)
	require.ErrorContains(t, skipped[5].Damage, "no MANIFEST.json: the checkpoint was not finished")
}

// TestRetain runs Retain on random folders and checks the rules in its comment.
func TestRetain(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	templates := []fs.FS{os.DirFS(save(t, t.TempDir(), 1)), os.DirFS(saveShards(t, t.TempDir(), 1, 3))}
	const whole, corrupt, truncated, foreign = 0, 1, 2, 3
	for range 80 {
		dir := t.TempDir()
		condition := map[int]int{}
		for range rng.IntN(8) {
			step := rng.IntN(12)
			if _, ok := condition[step]; ok {
				continue
			}
			path := filepath.Join(dir, stepName(step))
			condition[step] = max(0, rng.IntN(6)-2)
			if condition[step] == foreign {
				require.NoError(t, os.Mkdir(path, 0o777))
				require.NoError(t, os.WriteFile(filepath.Join(path, "notes.txt"), []byte("user file"), 0o666))
				continue
			}
			require.NoError(t, os.CopyFS(path, templates[rng.IntN(2)]))
			switch condition[step] {
			case corrupt:
				flip(t, filepath.Join(path, StateFile))
			case truncated:
				require.NoError(t, os.Truncate(filepath.Join(path, StateFile), 1))
			}
		}
		partial := filepath.Join(dir, fmt.Sprintf(".%s%s01234567", stepName(rng.IntN(12)), partialMark))
		require.NoError(t, os.MkdirAll(filepath.Join(partial, "x"), 0o777))
		otherName := filepath.Join(dir, ".step-x.partial-1")
		require.NoError(t, os.Mkdir(otherName, 0o777))

		keepLast, keepEvery := rng.IntN(4), rng.IntN(4)
		removed, err := Retain(dir, keepLast, keepEvery)
		require.NoError(t, err)
		require.NoDirExists(t, partial)
		require.DirExists(t, otherName)

		newest, intact := -1, 0
		for step, c := range condition {
			if c == whole {
				newest = max(newest, step)
			}
			if c < truncated {
				intact++
			}
		}
		survivors, beyond := 0, 0
		for step := 11; step >= 0; step-- {
			c, ok := condition[step]
			if !ok {
				continue
			}
			path := filepath.Join(dir, stepName(step))
			_, err := os.Stat(path)
			kept := err == nil
			require.Equal(t, !kept, slices.Contains(removed, path))
			switch {
			case keepLast == 0, newest < 0, step >= newest, intact <= keepLast, c >= truncated:
				require.True(t, kept, "step %d of %v, keep last %d every %d", step, condition, keepLast, keepEvery)
			case keepEvery > 0 && step%keepEvery == 0:
				require.True(t, kept)
			case kept:
				beyond++
			}
			if kept && c < truncated && step <= newest {
				survivors++
			}
		}
		if keepLast > 0 && newest >= 0 && intact > keepLast {
			require.Less(t, beyond, keepLast, "checkpoints kept besides the newest valid one")
			older := 0
			for step, c := range condition {
				if c < truncated && step <= newest {
					older++
				}
			}
			require.GreaterOrEqual(t, survivors, min(keepLast, older))
		}
	}
}

func TestRetainErrors(t *testing.T) {
	dir := t.TempDir()
	for step := range 4 {
		save(t, dir, step)
	}
	stuck := errors.New("stuck")
	restore := disk.Intercept(func(c disk.Change) error {
		if c.Op == disk.Rename && filepath.Base(c.Path) == stepName(0) {
			return stuck
		}
		return c.Do()
	})
	removed, err := Retain(dir, 2, 0)
	restore()
	require.ErrorIs(t, err, stuck)
	require.Equal(t, []string{filepath.Join(dir, stepName(1))}, removed)

	removed, err = Retain(filepath.Join(dir, "none"), 2, 0)
	require.NoError(t, err)
	require.Empty(t, removed)
}

// flip changes one bit in the middle of a file.
func flip(t testing.TB, name string) {
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	b[len(b)/2] ^= 1
	require.NoError(t, os.WriteFile(name, b, 0o666))
}

// TestLinkedFolder replaces a checkpoint by a symlink to its folder, as for a larger
// disk. The link is a checkpoint like any other; Retain deletes only the link.
func TestLinkedFolder(t *testing.T) {
	dir, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "moved")
	path := save(t, dir, 1)
	require.NoError(t, os.Rename(path, elsewhere))
	require.NoError(t, os.Symlink(elsewhere, path))
	c, skipped, err := Newest(dir)
	require.NoError(t, err)
	require.Empty(t, skipped)
	require.Equal(t, path, c.Path)
	require.NoError(t, c.Close())
	save(t, dir, 2)
	removed, err := Retain(dir, 1, 0)
	require.NoError(t, err)
	require.Equal(t, []string{path}, removed)
	require.NoError(t, Verify(elsewhere))
	require.Equal(t, []string{stepName(2)}, names(t, dir))
}
