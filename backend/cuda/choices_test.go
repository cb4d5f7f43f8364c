package cuda

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// cacheDir redirects the user's cache folder to a temporary one.
func cacheDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"XDG_CACHE_HOME", "LocalAppData", "HOME"} {
		t.Setenv(name, dir)
	}
	return dir
}

func TestChoicesAreCached(t *testing.T) {
	cacheDir(t)
	one, two, three := algorithm{1}, algorithm{63: 2}, algorithm{3}
	r := newAlgorithmCache("13.1", "H100")
	require.Empty(t, r.Algorithms)
	r.set("a", three)
	r.save()

	other := newAlgorithmCache("13.1", "H100")
	require.Equal(t, map[string]algorithm{"a": three}, other.Algorithms)
	other.set("b", one)
	r.set("c", two)
	other.save()
	r.save() // adds to what the other wrote
	third := newAlgorithmCache("13.1", "H100")
	require.Equal(t, map[string]algorithm{"a": three, "b": one, "c": two}, third.Algorithms)
	require.Empty(t, newAlgorithmCache("13.2", "H100").Algorithms)
	require.Empty(t, newAlgorithmCache("13.1", "H200").Algorithms)

	require.NoError(t, os.WriteFile(third.path, []byte("{"), 0o666))
	require.Empty(t, newAlgorithmCache("13.1", "H100").Algorithms)
	left, err := filepath.Glob(filepath.Join(filepath.Dir(third.path), "new-*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// A cache that cannot be written only costs time.
func TestChoicesWithoutACache(t *testing.T) {
	dir := cacheDir(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "octet"), nil, 0o666)) // where a folder should be
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "Library"), 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "Library", "Caches"), nil, 0o666))
	r := newAlgorithmCache("13.1", "H100")
	r.set("a", algorithm{1})
	r.save()
	require.Equal(t, algorithm{1}, r.Algorithms["a"])
}

// Choices survive a round trip; invalid text, and that of another library, yields none.
func TestChoicesAsText(t *testing.T) {
	c := noChoices("13.1.2")
	require.Empty(t, c.fingerprint())
	c.Algorithms["a"], c.Algorithms["b"] = algorithm{1, 2, 3}, algorithm{63: 255}
	text := string(c.text())
	require.Equal(t, c, parseChoices([]byte(text), "13.1.2"))
	for _, bad := range []string{
		"", "{", "[]", "null", `{"cublaslt":"13.1.2"}`, text[:len(text)/2],
		strings.Replace(text, "010203", "01020", 1), strings.Replace(text, "010203", "01020g", 1),
	} {
		require.Equal(t, noChoices("13.1.2"), parseChoices([]byte(bad), "13.1.2"), bad)
	}
	require.Equal(t, noChoices("13.2.0"), parseChoices([]byte(text), "13.2.0"))
}

// FuzzChoices: any text yields choices of that library that survive a round trip, or
// none.
func FuzzChoices(f *testing.F) {
	c := noChoices("13")
	f.Add(c.text(), "13")
	c.Algorithms["fprop e4m3 64x64x64"], c.Algorithms[""] = algorithm{1, 2, 3}, algorithm{63: 255}
	f.Add(c.text(), "13")
	f.Add(c.text(), "12")
	f.Add([]byte(`{"cublaslt":"","products":{"a":"`+strings.Repeat("0", 128)+`","A":null,"a":"x"}}`), "")
	f.Add([]byte(`{"products":null,"cublaslt":"13"}`), "13")
	f.Add([]byte(strings.Repeat(`{"products":`, 20_000)), "13")
	f.Fuzz(func(t *testing.T, text []byte, library string) {
		c := parseChoices(text, library)
		require.Equal(t, library, c.Library)
		require.NotNil(t, c.Algorithms, "set writes to the map")
		require.LessOrEqual(t, len(c.Algorithms), len(text)/2)
		require.Equal(t, len(c.Algorithms) == 0, c.fingerprint() == "")
		if utf8.ValidString(library) { // as every library version is
			require.Equal(t, c, parseChoices(c.text(), library))
		}
	})
}

// The fingerprint depends on every choice, and on nothing else.
func TestFingerprint(t *testing.T) {
	of := func(algorithms map[string]algorithm) string { return choices{"13", algorithms}.fingerprint() }
	base := of(map[string]algorithm{"a": {1}, "b": {2}})
	require.Len(t, base, 8)
	require.Equal(t, base, of(map[string]algorithm{"b": {2}, "a": {1}}))
	require.NotEqual(t, base, of(map[string]algorithm{"a": {1}, "b": {3}}))
	require.NotEqual(t, base, of(map[string]algorithm{"a": {2}, "b": {1}}))
	require.NotEqual(t, base, of(map[string]algorithm{"a": {1}}))
}
