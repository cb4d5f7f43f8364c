package cuda

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

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
	one, two, three := algorithm{1}, algorithm{63: 2}, algorithm{3}
	r := remember("13.1", "H100")
	require.Empty(t, r.Products)
	r.set("a", three)
	r.save()

	other := remember("13.1", "H100")
	require.Equal(t, map[string]algorithm{"a": three}, other.Products)
	other.set("b", one)
	r.set("c", two)
	other.save()
	r.save() // adds to what the other wrote
	third := remember("13.1", "H100")
	require.Equal(t, map[string]algorithm{"a": three, "b": one, "c": two}, third.Products)
	require.Empty(t, remember("13.2", "H100").Products)
	require.Empty(t, remember("13.1", "H200").Products)

	require.NoError(t, os.WriteFile(third.path, []byte("{"), 0o666))
	require.Empty(t, remember("13.1", "H100").Products)
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
	r := remember("13.1", "H100")
	r.set("a", algorithm{1})
	r.save()
	require.Equal(t, algorithm{1}, r.Products["a"])
}

// What is written is read back; anything else, and another library's, is nothing.
func TestChoicesAsText(t *testing.T) {
	c := noChoices("13.1.2")
	require.Empty(t, c.fingerprint())
	c.Products["a"], c.Products["b"] = algorithm{1, 2, 3}, algorithm{63: 255}
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

// FuzzChoices: any text is choices of that library, which are written and read
// as the same ones, or none.
func FuzzChoices(f *testing.F) {
	c := noChoices("13")
	f.Add(c.text(), "13")
	c.Products["fprop e4m3 64x64x64"], c.Products[""] = algorithm{1, 2, 3}, algorithm{63: 255}
	f.Add(c.text(), "13")
	f.Add(c.text(), "12")
	f.Add([]byte(`{"cublaslt":"","products":{"a":"`+strings.Repeat("0", 128)+`","A":null,"a":"x"}}`), "")
	f.Add([]byte(`{"products":null,"cublaslt":"13"}`), "13")
	f.Add([]byte(strings.Repeat(`{"products":`, 20_000)), "13")
	f.Fuzz(func(t *testing.T, text []byte, library string) {
		c := parseChoices(text, library)
		require.Equal(t, library, c.Library)
		require.NotNil(t, c.Products, "set writes into it")
		require.LessOrEqual(t, len(c.Products), len(text)/2)
		require.Equal(t, len(c.Products) == 0, c.fingerprint() == "")
		if utf8.ValidString(library) { // as every library's is
			require.Equal(t, c, parseChoices(c.text(), library))
		}
	})
}

// The fingerprint is that of every choice, and of nothing but them.
func TestFingerprint(t *testing.T) {
	of := func(products map[string]algorithm) string { return choices{"13", products}.fingerprint() }
	base := of(map[string]algorithm{"a": {1}, "b": {2}})
	require.Len(t, base, 8)
	require.Equal(t, base, of(map[string]algorithm{"b": {2}, "a": {1}}))
	require.NotEqual(t, base, of(map[string]algorithm{"a": {1}, "b": {3}}))
	require.NotEqual(t, base, of(map[string]algorithm{"a": {2}, "b": {1}}))
	require.NotEqual(t, base, of(map[string]algorithm{"a": {1}}))
}
