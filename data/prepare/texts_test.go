package prepare

import (
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Texts gives the texts of lines and files in order, a long one in parts.
func TestTexts(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	long := strings.Repeat("words of a long text\n", 150_000)
	write("a.jsonl", "{\"text\": \"first \\u00e9\"}\n\n{\"body\": 1, \"text\": \"second\"}\n")
	write("b.txt", "third")
	write("c.md", long)
	write("d.bin", "\x00")
	f, err := os.Create(filepath.Join(dir, "e.jsonl.gz"))
	require.NoError(t, err)
	zip := gzip.NewWriter(f)
	_, err = zip.Write([]byte(`{"text": "fourth"}`))
	require.NoError(t, err)
	require.NoError(t, zip.Close())
	require.NoError(t, f.Close())

	var got []string
	open := ""
	leftOut, err := Texts(t.Context(), []string{dir}, "", func(text []byte, last bool) {
		require.Less(t, len(text), len(long))
		if open += string(text); last {
			got, open = append(got, open), ""
		}
	})
	require.NoError(t, err)
	require.Equal(t, []string{"first é", "second", "third", long, "fourth"}, got)
	t.Chdir(dir) // nothing is written to the current folder, so that nothing of it is left out
	n := 0
	_, err = Texts(t.Context(), []string{"."}, "", func(_ []byte, last bool) {
		if last {
			n++
		}
	})
	require.NoError(t, err)
	require.Equal(t, len(got), n)
	require.EqualValues(t, 1, leftOut)

	write("a.jsonl", "{\"text\": \"first\"}\n{\"body\": 1}\n")
	_, err = Texts(t.Context(), []string{dir}, "", func([]byte, bool) {})
	require.ErrorContains(t, err, "a.jsonl: line 2")
	_, err = Texts(t.Context(), []string{filepath.Join(dir, "none")}, "", func([]byte, bool) {})
	require.ErrorContains(t, err, "does not exist")
}
