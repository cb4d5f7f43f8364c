package disk

import (
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// A folder and a missing folder within it have the same free space.
func TestFree(t *testing.T) {
	if runtime.GOOS != "linux" && runtime.GOOS != "darwin" {
		t.Skip("the free space is unknown here")
	}
	dir := t.TempDir()
	here, ok := Free(dir)
	require.True(t, ok)
	require.Positive(t, here)
	there, ok := Free(filepath.Join(dir, "not", "made"))
	require.True(t, ok)
	require.InEpsilon(t, here, there, 0.5) // other processes write meanwhile
	_, ok = Free("not/made/yet")
	require.True(t, ok)
}
