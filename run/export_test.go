package run

import (
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
)

// A scale that cannot be read and a scale that the run did not store give different errors.
func TestExportSaysWhatFailed(t *testing.T) {
	c, dir := tinyConfig(t), filepath.Join(t.TempDir(), "run")
	c.Recipe, c.Train.Steps = "fp8-delayed", 1
	r, err := Start(t.Context(), Options{Config: c, Dir: dir, Backend: "emu", Threads: 1})
	require.NoError(t, err)
	require.NoError(t, r.Train(t.Context(), func(Progress) {}))
	require.NoError(t, r.Close())
	w, err := OpenWeights(dir, "")
	require.NoError(t, err)
	devices, err := backend.Open("emu", backend.Options{Threads: 1})
	require.NoError(t, err)
	m, err := ExportModel(t.Context(), w, devices[0])
	require.NoError(t, err)
	_, err = m.ScaleInv("layers.0.mlp.input")
	require.NoError(t, err)
	_, err = m.ScaleInv("layers.9.mlp.input")
	require.ErrorContains(t, err, "which only a run in FP8 stores")
	require.NoError(t, w.Close())
	_, err = m.ScaleInv("layers.0.mlp.input")
	require.ErrorIs(t, err, fs.ErrClosed)
	require.NotContains(t, err.Error(), "which only a run in FP8 stores")
	require.NoError(t, devices[0].Close())
}
