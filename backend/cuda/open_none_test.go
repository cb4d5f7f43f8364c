//go:build !(cuda && cgo && linux)

package cuda

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
)

// Without the tag there is no device, and the error says how to build.
func TestBuildWithoutTheTag(t *testing.T) {
	d, device, err := backend.Find("cuda:0")
	require.NoError(t, err)
	require.Equal(t, "0", device)
	require.ErrorIs(t, d.Available(), backend.ErrNoDevice)
	_, err = d.Open(device, backend.Options{})
	require.ErrorIs(t, err, backend.ErrNoDevice)
	if runtime.GOOS == "linux" {
		require.ErrorContains(t, err, "go build -tags cuda")
	}
}
