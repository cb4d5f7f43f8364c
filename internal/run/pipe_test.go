//go:build linux || darwin

package run

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/internal/config"
)

// A run's configuration that is a pipe is not opened: this test would not end.
func TestResumeOpensNoPipe(t *testing.T) {
	c := smoothConfig(t)
	dir := filepath.Join(t.TempDir(), "run")
	smoothRun(t, c, dir)
	require.NoError(t, os.Remove(ConfigPath(dir)))
	require.NoError(t, syscall.Mkfifo(ConfigPath(dir), 0o600))
	_, err := ResumedConfig(dir, config.Args{})
	require.ErrorContains(t, err, "config.toml is not a regular file: put one in its place")
}
