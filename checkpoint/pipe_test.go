//go:build linux || darwin

package checkpoint

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPipesAreNotOpened replaces files by named pipes. Opening a pipe blocks until there
// is a writer, so the test would hang.
func TestPipesAreNotOpened(t *testing.T) {
	path := save(t, t.TempDir(), 1)
	pipe := func(dir, name string) {
		require.NoError(t, os.RemoveAll(filepath.Join(dir, name)))
		require.NoError(t, syscall.Mkfifo(filepath.Join(dir, name), 0o600))
	}
	for _, name := range []string{StateFile, OptimizerFile, ConfigFile, ModelFile, ManifestFile} {
		pipe(path, name)
		_, err := Open(path)
		require.ErrorContains(t, err, name+": not a regular file")
		_, _, err = OpenModel(path)
		require.ErrorContains(t, err, name+": not a regular file")
	}
	sharded := saveShards(t, t.TempDir(), 1, 2)
	for _, name := range []string{shardName(1, 2), shardName(0, 2)} {
		pipe(sharded, name)
		_, err := Open(sharded)
		require.ErrorContains(t, err, name+": not a regular file")
		_, _, err = OpenModel(sharded)
		require.ErrorContains(t, err, name+": not a regular file")
		_, _, err = openShards(sharded, 2)
		require.ErrorContains(t, err, name+": not a regular file")
	}
	bare := t.TempDir()
	for _, name := range []string{indexFile, ModelFile, ConfigFile} { // in reverse order of reading
		require.NoError(t, os.WriteFile(filepath.Join(bare, ConfigFile), minimal(`{}`), 0o600))
		pipe(bare, name)
		_, _, err := OpenModel(bare)
		require.ErrorContains(t, err, name+": not a regular file")
	}
}

func TestLockOpensNoPipe(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, ".lock"), 0o600))
	_, err := Lock(dir)
	require.ErrorContains(t, err, ".lock is not a regular file: remove it")
}
