//go:build !(cuda && cgo && linux)

package cuda

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
)

// Without the tag or cgo there is no device, and the error says how to build.
func TestBuildWithoutTheBackend(t *testing.T) {
	d, device, err := backend.Find("cuda:0")
	require.NoError(t, err)
	require.Equal(t, "0", device)
	require.ErrorIs(t, d.Available(""), backend.ErrNotBuilt)
	require.Empty(t, d.Probe(), "Available returns the reason")
	_, err = d.Open(device, backend.Options{})
	require.ErrorIs(t, err, backend.ErrNoDevice)
	if runtime.GOOS == "linux" {
		require.EqualError(t, err, "backend cuda: not in this binary: "+howToBuild+", or use --backend emu")
		require.Contains(t, howToBuild, "make build TAGS=cuda", "README.md and build_tags.md name this command")
	}
}
