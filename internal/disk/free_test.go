package disk

import (
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// The free space of a folder is that of one that would be made in it.
func TestFree(t *testing.T) {
	if runtime.GOOS != "linux" && runtime.GOOS != "darwin" {
		t.Skip("the free space is not known here")
	}
	dir := t.TempDir()
	here, ok := Free(dir)
	require.True(t, ok)
	require.Positive(t, here)
	there, ok := Free(filepath.Join(dir, "not", "made"))
	require.True(t, ok)
	require.InEpsilon(t, here, there, 0.5) // others write meanwhile
	_, ok = Free("not/made/yet")
	require.True(t, ok)
}
