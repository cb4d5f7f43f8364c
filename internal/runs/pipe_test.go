//go:build linux || darwin

package runs

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Open reads neither pipes, which would hang, nor links, and lists few of many problems.
func TestOpenReadsRegularFiles(t *testing.T) {
	dir := folder(t, map[string]string{"config.toml": someConfig, "metrics.jsonl": strings.Repeat("x\n", 1000)})
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "timing.jsonl"), 0o600))
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(dir, "run.log")))
	r, err := Open(dir)
	require.NoError(t, err)
	require.Len(t, r.Problems, maxProblems+1+2)
	require.Contains(t, strings.Join(r.Problems, "\n"), "timing.jsonl: it is not a regular file\nrun.log: it is not a regular file")
}
