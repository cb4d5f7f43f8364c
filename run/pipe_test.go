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

// ResumedConfig does not open a config.toml that is a pipe: this test would hang.
func TestResumeOpensNoPipe(t *testing.T) {
	c := smoothConfig(t)
	dir := filepath.Join(t.TempDir(), "run")
	smoothRun(t, c, dir)
	require.NoError(t, os.Remove(ConfigPath(dir)))
	require.NoError(t, syscall.Mkfifo(ConfigPath(dir), 0o600))
	_, err := ResumedConfig(dir, config.Args{})
	require.ErrorContains(t, err, "config.toml is not a regular file: put one in its place")
}
