package gaudi

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func saved(text string) func(string) error {
	return func(path string) error { return os.WriteFile(path, []byte(text), 0o666) }
}

// The cache finds kept files, for the same version and model, and deletes damaged ones.
func TestCacheOfRecipes(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the cache directory is for Linux")
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
	require.Len(t, list, 1, "a failed keep left a file")

	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("HOME", "")
	nowhere := openCache("1.24.0", "gaudi2")
	nowhere.keep("key", saved("recipe"))
	_, ok = nowhere.find("key")
	require.False(t, ok)
}

// The least recently used files are deleted first, of any version.
func TestCacheIsTrimmed(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the cache directory is for Linux")
	}
	t.Setenv("XDG_CACHE_HOME", filepath.Join(t.TempDir(), "[a user's own]")) // must not be read as a glob pattern
	old, c := openCache("1.23.0", "gaudi2"), openCache("1.24.0", "gaudi2")
	old.limit, c.limit = 30, 30
	age := func(c *cache, key string, hours int) {
		path, ok := c.find(key)
		require.True(t, ok)
		then := time.Now().Add(-time.Duration(hours) * time.Hour)
		require.NoError(t, os.Chtimes(path, then, then))
	}
	has := func(c *cache, key string) bool {
		names, err := fs.Glob(os.DirFS(c.dir), key+"-*")
		require.NoError(t, err)
		return len(names) == 1
	}
	ten := saved("ten bytes.")
	old.keep("a", ten)
	age(old, "a", 3)
	c.keep("b", ten)
	age(c, "b", 5)
	c.keep("c", ten)
	age(c, "c", 4)
	_, ok := c.find("b") // marks it as the most recently used
	require.True(t, ok)
	require.True(t, has(old, "a") && has(c, "b") && has(c, "c"), "the limit allows three files")
	c.keep("d", ten)
	require.False(t, has(c, "c"))
	require.True(t, has(old, "a") && has(c, "b") && has(c, "d"))
	age(c, "b", 2)
	c.keep("e", saved("twenty bytes........"))
	require.True(t, has(c, "e") && has(c, "d"))
	require.False(t, has(old, "a") || has(c, "b"))
	c.keep("f", saved("more bytes than the limit allows"))
	require.False(t, has(c, "f"), "a file above the limit was kept")
	require.True(t, has(c, "e") && has(c, "d"))
}
