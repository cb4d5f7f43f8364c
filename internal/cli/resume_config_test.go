package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend/world"
	"octet/internal/config"
)

// A resumed run takes the configuration of its folder, of which the command may change the
// length.
func TestResumedConfig(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, config.RunFile), []byte("[train]\nsteps = 7\n"), 0o600))
	c, err := resumedConfig(dir, config.Args{}, world.Place{Size: 1})
	require.NoError(t, err)
	require.Equal(t, 7, c.Train.Steps)
	c, err = resumedConfig(dir, config.Args{Assignments: []string{"train.steps=9"}}, world.Place{Size: 1})
	require.NoError(t, err)
	require.Equal(t, 9, c.Train.Steps)

	_, err = resumedConfig(dir, config.Args{File: "my.toml"}, world.Place{Size: 1})
	require.ErrorContains(t, err, "my.toml is given with --resume")
	_, err = resumedConfig(dir, config.Args{Assignments: []string{"optimizer.lr=1"}}, world.Place{Size: 1})
	require.ErrorContains(t, err, "optimizer.lr is given with --resume")
	_, err = resumedConfig(t.TempDir(), config.Args{}, world.Place{Size: 1})
	require.ErrorContains(t, err, "is not a run folder: it has no config.toml")
}

// A key that both the file and the command line give is reported once.
func TestAutoConfigNamesAKeyOnce(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, config.RunFile), []byte("[optimizer]\nlr = 0.002\n"), 0o600))
	file := filepath.Join(t.TempDir(), "my.toml")
	require.NoError(t, os.WriteFile(file, []byte("seed = 5\n[optimizer]\nlr = 0.001\n"), 0o600))
	_, resumes, err := autoConfig(dir, config.Args{File: file, Assignments: []string{"optimizer.lr=0.003"}}, world.Place{Size: 1})
	require.True(t, resumes)
	require.ErrorContains(t, err, "optimizer.lr is 0.002 in the run, 0.003 given")
	require.Equal(t, 1, strings.Count(err.Error(), "optimizer.lr"), err)
}
