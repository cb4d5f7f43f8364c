//go:build mpi && cgo && linux

package cli

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend/cost"
)

// Two processes over MPI measure their collectives. Rank 0 alone prints, and writes the file.
func TestCollectivesOfProcesses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.toml")
	m := startMPI(t, 2, same, "bench", "collectives", "--backend", "emu", "--threads", "1", "--seconds", "0.02", "64k", "1M", "--calibrate", file)
	m.wait(-1)
	require.Equal(t, make([]int, len(m.ranks)), m.status, "%v", m)
	require.Empty(t, m.errors())
	require.Equal(t, 1, strings.Count(m.String(), "reduce-scatter        2x1048576"), "%v", m)
	c, err := cost.ReadCalibration(file)
	require.NoError(t, err)
	require.Positive(t, c.Numbers["link"].Value)
	require.Equal(t, "emu", c.Backend)

	m = startMPI(t, 2, same, "bench", "collectives", "--backend", "emu", "--ranks", "3")
	m.wait(-1)
	require.Equal(t, []int{2, 2}[:len(m.status)], m.status, "%v", m)
	require.Contains(t, m.String(), "--ranks is 3, but")
}
