package run

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
	"octet/internal/disk"
)

// A run resumes on a device with other formats, and run.log says how the recipe changes.
func TestRunMovesToOtherFormats(t *testing.T) {
	const elsewhere = "emu:gaudi2"
	c := tinyConfig(t)
	c.Recipe, c.Train.Steps = "fp8-smooth", 1
	c.Data.Paths = []string{filepath.Join(t.TempDir(), "text.txt")}
	require.NoError(t, c.Resolve())
	require.NoError(t, disk.WriteAtomic(c.Data.Paths[0], bytes.Repeat([]byte("text "), 4000)))
	dir := filepath.Join(t.TempDir(), "run")
	start := func(name string) (converted bool) {
		o := Options{Config: c, Dir: dir, Resume: exists(dir), Backend: name, Threads: 1}
		r, err := Start(t.Context(), o)
		require.NoError(t, err)
		require.NoError(t, r.Train(t.Context(), func(Progress) {}))
		require.Equal(t, name == elsewhere, r.Trainer.Recipe.Optimizer.M1 == fp8.E4M3IEEE)
		require.NoError(t, r.Close())
		c.Train.Steps++
		return r.Trainer.Converted
	}
	logged := func() string {
		text, err := os.ReadFile(filepath.Join(dir, logFile))
		require.NoError(t, err)
		return string(text)
	}
	require.False(t, start("emu"))
	require.NotContains(t, logged(), "recipe on this device")
	require.True(t, start(elsewhere))
	require.Contains(t, logged(), `"msg":"recipe on this device","note":"dgrad reads weight in e5m2: this device has no GEMM of e5m2 by e4m3ieee"`)
	require.Contains(t, logged(), `"msg":"moments rounded to this device's e4m3"`)
	require.False(t, start(elsewhere))

	require.True(t, start("emu"))
}
