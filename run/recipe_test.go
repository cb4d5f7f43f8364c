package run

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A run keeps a copy of its recipe file: it resumes, evaluates and repeats without the
// original, also where its folder was moved.
func TestRunWithARecipeFile(t *testing.T) {
	dir := t.TempDir()
	file, text := filepath.Join(dir, "first-in-bf16.toml"), filepath.Join(dir, "text.txt")
	require.NoError(t, os.WriteFile(file, []byte("recipe = \"fp8-smooth\"\n[precision]\nhistory = 3\n[[precision.rows]]\nscope = \"layers.0.*\"\nformat = \"bf16\"\n"), 0o600))
	require.NoError(t, os.WriteFile(text, bytes.Repeat([]byte("text "), 1000), 0o600))
	small := []string{"model.dim=32", "model.heads=2", "model.kv_heads=1", "model.ffn=48", "model.layers=2", "data.seq=32", "train.micro_batch=2", "train.steps=1", "data.paths=" + text}
	c, err := NewConfig("", append(small, "recipe="+file)...)
	require.NoError(t, err)
	train := func(folder string, resume bool) {
		r, err := Start(t.Context(), Options{Config: c, Dir: folder, Resume: resume, Backend: "emu", Threads: 1})
		require.NoError(t, err)
		require.NoError(t, r.Train(t.Context(), func(Progress) {}))
		require.NoError(t, r.Close())
	}
	train(filepath.Join(dir, "run"), false)
	require.NoError(t, os.Remove(file))
	moved := filepath.Join(dir, "elsewhere")
	require.NoError(t, os.Rename(filepath.Join(dir, "run"), moved))

	c, err = NewConfig(configPath(moved))
	require.NoError(t, err)
	again := filepath.Join(dir, "again")
	train(again, false)
	a, err := os.ReadFile(filepath.Join(moved, metricsFile))
	require.NoError(t, err)
	b, err := os.ReadFile(filepath.Join(again, metricsFile))
	require.NoError(t, err)
	require.Equal(t, string(a), string(b))

	c, err = ConfigOf(moved)
	require.NoError(t, err)
	c.Train.Steps = 2
	require.Equal(t, "first-in-bf16", c.Recipe)
	train(moved, true)
	w, err := OpenWeights(moved, "")
	require.NoError(t, err)
	require.Equal(t, 3, w.Recipe.History)
	require.NoError(t, w.Close())
}
