//go:build linux || darwin

package run

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// ConfigOf does not open a config.toml that is a pipe: this test would hang.
func TestResumeOpensNoPipe(t *testing.T) {
	c := smoothConfig(t)
	dir := filepath.Join(t.TempDir(), "run")
	smoothRun(t, c, dir)
	require.NoError(t, os.Remove(configPath(dir)))
	require.NoError(t, syscall.Mkfifo(configPath(dir), 0o600))
	_, err := ConfigOf(dir)
	require.ErrorContains(t, err, "config.toml is not a regular file: put one in its place")
}
