package gaudi

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func saved(text string) func(string) error {
	return func(path string) error { return os.WriteFile(path, []byte(text), 0o666) }
}

// What was kept is found, by the same version for the same model, until it is
// damaged; then it is gone.
func TestCacheOfRecipes(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the directory is another one elsewhere")
	}
	dir := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", dir)
	t.Setenv("GC_KERNEL_PATH", "kernels.so")
	c := openCache("1.24.0", "gaudi2")
	_, ok := c.find("key")
	require.False(t, ok)
	c.keep("key", saved("recipe"))
	c.keep("ke", saved("of another graph"))
	path, ok := openCache("1.24.0", "gaudi2").find("key")
	require.True(t, ok)
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "recipe", string(raw))
	for _, other := range []*cache{openCache("1.25.0", "gaudi2"), openCache("1.24.0", "gaudi3"), openCache("1.24.0g", "audi2")} {
		_, ok := other.find("key")
		require.False(t, ok)
	}
	t.Setenv("GC_KERNEL_PATH", "others.so")
	_, ok = openCache("1.24.0", "gaudi2").find("key")
	require.False(t, ok, "other kernels")

	require.NoError(t, os.WriteFile(path, []byte("recipf"), 0o666))
	_, ok = c.find("key")
	require.False(t, ok)
	require.NoFileExists(t, path)

	c.keep("key", func(path string) error { return errors.Join(saved("half")(path), errors.New("full")) })
	_, ok = c.find("key")
	require.False(t, ok)
	list, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, list, 1, "nothing is left of what was not kept")

	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("HOME", "")
	nowhere := openCache("1.24.0", "gaudi2")
	nowhere.keep("key", saved("recipe"))
	_, ok = nowhere.find("key")
	require.False(t, ok)
}
