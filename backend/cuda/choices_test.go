package cuda

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// cacheDir sends the user's cache folder elsewhere.
func cacheDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"XDG_CACHE_HOME", "LocalAppData", "HOME"} {
		t.Setenv(name, dir)
	}
	return dir
}

func TestChoicesAreRemembered(t *testing.T) {
	cacheDir(t)
	c := openChoices("H100", "13.1")
	_, ok := c.of("a", 8)
	require.False(t, ok)
	c.set("a", 3)
	c.save()

	other := openChoices("H100", "13.1")
	place, ok := other.of("a", 8)
	require.True(t, ok)
	require.Equal(t, 3, place)
	_, ok = other.of("a", 3) // of a shorter list
	require.False(t, ok)
	other.set("b", 1)
	c.set("c", 2)
	other.save()
	c.save() // adds to what the other wrote
	third := openChoices("H100", "13.1")
	require.Equal(t, map[string]int{"a": 3, "b": 1, "c": 2}, third.places)
	require.Empty(t, openChoices("H100", "13.2").places)

	require.NoError(t, os.WriteFile(third.path, []byte("{"), 0o666))
	require.Empty(t, openChoices("H100", "13.1").places)
	left, err := filepath.Glob(filepath.Join(filepath.Dir(third.path), "new-*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// A cache that cannot be written costs time only.
func TestChoicesWithoutACache(t *testing.T) {
	dir := cacheDir(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "octet"), nil, 0o666)) // where a folder should be
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "Library"), 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "Library", "Caches"), nil, 0o666))
	c := openChoices("H100")
	c.set("a", 1)
	c.save()
	place, ok := c.of("a", 2)
	require.True(t, ok)
	require.Equal(t, 1, place)
}
