package checkpoint

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
	"octet/internal/disk"
)

type state struct {
	Step int    `json:"step"`
	Seed uint64 `json:"seed"`
}

var tiny = Config{
	HiddenSize: 32, IntermediateSize: 48, NumHiddenLayers: 1, NumAttentionHeads: 4, NumKeyValueHeads: 2,
	VocabSize: 256, MaxPositionEmbeddings: 64, RMSNormEps: 1e-5, RopeTheta: 10000, HiddenAct: "silu", Gated: true, TorchDType: "float32",
}

func contents(step int) Contents {
	return Contents{
		Config: tiny,
		Model: []Tensor{
			{"model.norm.weight", fp8.F32, []int{2}, Bytes([]byte{0, 0, 128, 63, byte(step), 0, 0, 64})},
			{"lm_head.weight", fp8.BF16, []int{1, 2}, Bytes([]byte{1, 2, 3, 4})},
		},
		Optimizer: []Tensor{
			{"m1", fp8.E4M3IEEE, []int{3}, Bytes([]byte{0x77, 0x78, 0x79})},
			{"m2", fp8.E5M2, []int{3}, Bytes([]byte{1, 2, 3})},
			{"master", fp8.F16, []int{1}, Bytes([]byte{1, 2})},
			{"block_scales", fp8.E8M0, []int{2, 1}, Bytes([]byte{127, 128})},
			{"step", fp8.I32, []int{}, Bytes([]byte{byte(step), 0, 0, 0})},
			{"none", fp8.F32, []int{0}, Bytes(nil)},
		},
		State: state{step, 1<<63 + 1},
	}
}

func save(t testing.TB, dir string, step int) string {
	path, err := Save(dir, step, contents(step))
	require.NoError(t, err)
	return path
}

func requireTensors(t *testing.T, want []Tensor, got *Tensors) {
	require.Len(t, got.List(), len(want))
	for _, w := range want {
		g, ok := got.Lookup(w.Name)
		require.True(t, ok, w.Name)
		require.Equal(t, w.DType, g.DType, w.Name)
		require.Equal(t, w.Shape, g.Shape)
		var wrote, streamed strings.Builder
		require.NoError(t, w.Data(&wrote))
		require.NoError(t, g.Data(&streamed))
		require.Equal(t, wrote.String(), streamed.String())
		b := make([]byte, wrote.Len())
		require.NoError(t, got.ReadInto(w.Name, b))
		require.Equal(t, wrote.String(), string(b))
	}
	_, ok := got.Lookup("absent")
	require.False(t, ok)
	require.ErrorContains(t, got.ReadInto("absent", nil), `no tensor "absent"`)
}

func TestSaveAndOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "checkpoints")
	path := save(t, dir, 200)
	require.Equal(t, filepath.Join(dir, "step-00000200"), path)
	require.Equal(t, []string{"step-00000200"}, names(t, dir), "Save left other files")
	require.Equal(t, []string{"MANIFEST.json", "config.json", "model.safetensors", "optimizer.safetensors", "state.json"}, names(t, path))

	c, err := Open(path)
	require.NoError(t, err)
	require.Equal(t, path, c.Path)
	require.Equal(t, tiny, c.Config)
	requireTensors(t, contents(200).Model, c.Model)
	requireTensors(t, contents(200).Optimizer, c.Optimizer)
	require.JSONEq(t, `{"step":200,"seed":9223372036854775809}`, string(c.State))

	// Saving the opened checkpoint again gives the same bytes.
	again, err := Save(t.TempDir(), 200, Contents{Config: c.Config, Model: c.Model.List(), Optimizer: c.Optimizer.List(), State: state{200, 1<<63 + 1}})
	require.NoError(t, err)
	for _, name := range names(t, path) {
		want, err := os.ReadFile(filepath.Join(path, name))
		require.NoError(t, err)
		got, err := os.ReadFile(filepath.Join(again, name))
		require.NoError(t, err)
		require.Equal(t, string(want), string(got), name)
	}
	require.NoError(t, c.Close())

	config, model, err := OpenModel(path)
	require.NoError(t, err)
	require.Equal(t, tiny, config)
	requireTensors(t, contents(200).Model, model)
	require.NoError(t, model.Close())
}

// TestStoredDTypes checks that every format with whole bytes has a safetensors dtype and is
// read back from it.
func TestStoredDTypes(t *testing.T) {
	e3m4, err := fp8.ParseDType("e3m4")
	require.NoError(t, err)
	for _, dtype := range []fp8.DType{
		fp8.F32, fp8.BF16, fp8.F16, fp8.E4M3, fp8.E4M3IEEE, fp8.E5M2, fp8.E8M0, fp8.E2M3, fp8.E3M2, fp8.INT8, fp8.I32, e3m4,
	} {
		var file bytes.Buffer
		data := make([]byte, dtype.Bytes(6))
		require.NoError(t, writeTensors(&file, []Tensor{{Name: "x", DType: dtype, Shape: []int{1, 6}, Data: Bytes(data)}}, nil))
		path := filepath.Join(t.TempDir(), "x.safetensors")
		require.NoError(t, os.WriteFile(path, file.Bytes(), 0o600))
		read, err := openTensors(path)
		require.NoError(t, err, dtype)
		x, ok := read.Lookup("x")
		require.True(t, ok)
		require.Equal(t, dtype, x.DType)
		require.NoError(t, read.ReadInto("x", data))
		require.NoError(t, read.Close())
	}
	for _, c := range []struct {
		dtype    string
		metadata map[string]string
		err      string
	}{
		{"F8_E4M3", map[string]string{"e4m3_max": "241"}, `e4m3_max = "241"`},
		{"I64", nil, "does not support dtype I64"},
		{"U8", nil, "does not support dtype U8"},
		{"F4", nil, "does not support dtype F4"},
		{"U8", map[string]string{"format.x": "e9m9"}, `metadata format.x: unknown number format "e9m9"`},
		{"U8", map[string]string{"format.x": "fp32"}, "metadata format.x: fp32 does not have one byte for each element"},
	} {
		_, err := storedDType("x", c.dtype, c.metadata)
		require.ErrorContains(t, err, c.err)
	}
	d, err := storedDType("x", "F8_E4M3", map[string]string{"e4m3_max": "448"})
	require.NoError(t, err)
	require.Equal(t, fp8.E4M3, d)
}

func TestSaveRefuses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "checkpoints")
	broken := errors.New("device lost")
	for _, c := range []struct {
		want string
		edit func(c *Contents)
	}{
		{"config.json: hidden_size = 0", func(c *Contents) { c.Config.HiddenSize = 0 }},
		{"state.json: json: unsupported type", func(c *Contents) { c.State = func() {} }},
		{"model.safetensors: tensor \"model.norm.weight\": data ended 4 bytes short", func(c *Contents) { c.Model[0].Data = Bytes([]byte{1, 2, 3, 4}) }},
		{"the name appears twice", func(c *Contents) { c.Model[1].Name = c.Model[0].Name }},
		{"cannot store format invalid", func(c *Contents) { c.Model[0].DType = fp8.Invalid }},
		{"optimizer.safetensors: tensor m2 is e4m3 and tensor m1 is e4m3ieee: one file can store only one of these formats", func(c *Contents) { c.Optimizer[1].DType = fp8.E4M3 }},
		{"device lost", func(c *Contents) { c.Optimizer[0].Data = func(io.Writer) error { return broken } }},
	} {
		bad := contents(1)
		c.edit(&bad)
		_, err := Save(dir, 1, bad)
		require.ErrorContains(t, err, c.want)
		if _, err := os.Stat(dir); err == nil {
			require.Empty(t, names(t, dir), "a failed Save left files")
		}
	}
	_, err := Save(dir, -1, contents(0))
	require.ErrorContains(t, err, "expected 0 or more")
	_, err = Save(filepath.Join(dir, "no", "run"), 1, contents(1))
	require.ErrorIs(t, err, os.ErrNotExist)

	save(t, dir, 1)
	_, err = Save(dir, 1, contents(1))
	require.ErrorContains(t, err, "a valid checkpoint of this step already exists")
}

func TestSaveReplacesDamaged(t *testing.T) {
	dir := t.TempDir()
	path := save(t, dir, 5)
	require.NoError(t, os.Truncate(filepath.Join(path, ModelFile), 10))
	require.Error(t, Verify(path))
	require.Equal(t, path, save(t, dir, 5))
	require.NoError(t, Verify(path))
	require.Equal(t, []string{"step-00000005"}, names(t, dir))
}

// savers save a checkpoint of a step in both layouts.
var savers = map[string]func(dir string, step int) (string, error){
	"whole":   func(dir string, step int) (string, error) { return Save(dir, step, contents(step)) },
	"sharded": func(dir string, step int) (string, error) { return trySaveShards(dir, step, 3) },
}

// TestCrash simulates a crash before each single change that a save makes to the
// disk, then truncates unsynced files to half, as a power cut may. After each
// crash the older checkpoint must be valid, the new one absent or valid, and the
// next save and Retain must succeed.
func TestCrash(t *testing.T) {
	start := t.TempDir()
	save(t, start, 100)
	require.NoError(t, os.Remove(filepath.Join(save(t, start, 200), ManifestFile))) // damaged, so a save replaces it
	for layout, save := range savers {
		ops := 0
		for stop := 0; ; stop++ {
			dir := t.TempDir()
			require.NoError(t, os.CopyFS(dir, os.DirFS(start)))
			if crashed := crashAt(t, dir, stop, save); !crashed {
				break // stop exceeds the number of changes
			}
			ops++
		}
		require.Greater(t, ops, 20, "%s: too few changes to the disk: Intercept missed some", layout)
	}
}

// crashAt crashes a save before a change; crashed is false if it makes fewer changes.
func crashAt(t *testing.T, dir string, stop int, save func(dir string, step int) (string, error)) (crashed bool) {
	crash, ops := errors.New("crash"), 0
	unsynced := map[string]bool{}
	restore := disk.Intercept(func(c disk.Change) error {
		if ops == stop {
			return crash // this change and all later ones
		}
		ops++
		switch c.Op {
		case disk.Create:
			unsynced[c.Path] = true
		case disk.Sync:
			delete(unsynced, c.Path)
		}
		return c.Do()
	})
	_, err := save(dir, 200)
	restore()
	if err == nil {
		return false
	}
	require.ErrorIs(t, err, crash)
	for path := range unsynced {
		info, err := os.Stat(path)
		if err == nil {
			require.NoError(t, os.Truncate(path, info.Size()/2))
		} else if moved := filepath.Join(dir, "step-00000200", filepath.Base(path)); errors.Is(err, os.ErrNotExist) {
			require.NoFileExists(t, moved, "renamed before it was synced")
		}
	}

	c, skipped, err := Newest(dir)
	require.NoError(t, err, "stopped before change %d", stop)
	if filepath.Base(c.Path) == "step-00000200" {
		require.Empty(t, skipped)
	} else {
		require.Equal(t, "step-00000100", filepath.Base(c.Path))
	}
	require.NoError(t, c.Close())

	_, err = save(dir, 300)
	require.NoError(t, err)
	_, err = Retain(dir, 9, 0)
	require.NoError(t, err)
	require.NotContains(t, strings.Join(names(t, dir), " "), partialMark)
	return true
}

// TestFailingDisk checks that a save cleans up after a disk error, which it cannot do
// after a crash.
func TestFailingDisk(t *testing.T) {
	full := errors.New("no space left on device")
	start := t.TempDir()
	save(t, start, 100)
	for _, save := range savers {
		for stop := 0; ; stop++ {
			dir := t.TempDir()
			require.NoError(t, os.CopyFS(dir, os.DirFS(start)))
			ops := -1
			restore := disk.Intercept(func(c disk.Change) error {
				ops++
				switch {
				case ops != stop:
					return c.Do()
				case c.Half != nil:
					return errors.Join(c.Half(), full)
				}
				return full
			})
			_, err := save(dir, 200)
			restore()
			if err == nil {
				require.Greater(t, stop, 15)
				break
			}
			require.ErrorIs(t, err, full)
			for _, name := range names(t, dir) {
				require.NoError(t, Verify(filepath.Join(dir, name)))
			}
		}
	}
}

// logChanges logs the changes of folders and the syncs, with "temp" for the hidden folder of
// step 7, until restore is called.
func logChanges() (log *[]string, restore func()) {
	log = new([]string)
	return log, disk.Intercept(func(c disk.Change) error {
		name := filepath.Base(c.Path)
		if strings.HasPrefix(name, ".step-00000007.partial-") {
			name = "temp"
		}
		if c.Op != disk.Write {
			*log = append(*log, string(c.Op)+" "+name)
		}
		return c.Do()
	})
}

// TestOrderOfChanges checks the order that makes the rename safe: sync every file,
// then the folder; write and sync the manifest; rename; sync the parent folder.
func TestOrderOfChanges(t *testing.T) {
	dir := t.TempDir()
	log, restore := logChanges()
	_, err := Save(dir, 7, contents(7))
	restore()
	require.NoError(t, err)
	run := filepath.Base(dir)
	want := []string{"mkdir " + run, "mkdir temp"}
	for _, name := range wholeFiles {
		want = append(want, "create "+name, "sync "+name)
	}
	want = append(want, "sync temp", "create MANIFEST.json", "sync MANIFEST.json", "sync temp", "rename temp", "sync "+run)
	require.Equal(t, want, *log)
}

func names(t testing.TB, dir string) []string {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	list := []string{}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	slices.Sort(list)
	return list
}
