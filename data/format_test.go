package data

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// What holds text as something else is refused, named or found, with what to do.
func TestFilesToExtract(t *testing.T) {
	for name, want := range map[string][]string{
		"a.jsonl":     {"JSON lines", "jq -r .text"},
		"A.JSONL":     {"JSON lines"},
		"a.ndjson":    {"JSON lines"},
		"a.jsonl.gz":  {"compressed JSON lines", "gzip -dc FILE | jq"},
		"a.jsonl.zst": {"compressed JSON lines", "zstd -dc FILE | jq"},
		"a.parquet":   {"Parquet", "pandas"},
		"wiki.txt.gz": {"compressed data", "gzip -dc FILE > FILE.txt"},
		"wiki.zst":    {"compressed data", "zstd -dc"},
	} {
		root := writeTree(t, map[string]string{name: `{"text": "a"}`, "b.txt": "text"})
		for _, path := range []string{root, filepath.Join(root, name)} {
			_, err := OpenFiles([]string{path}, Options{})
			requireSentence(t, err, append(want, name, "extract the text")...)
		}
	}
	// An archive that was found is left out, as any other binary file is.
	root := writeTree(t, map[string]string{"a.tar.gz": "\x1f\x8b\x00", "b.txt": "text", "a.json": "{}", ".hidden.jsonl": "{}"})
	c, err := OpenFiles([]string{root}, Options{})
	require.NoError(t, err)
	require.Equal(t, []string{"a.json", "b.txt"}, paths(c))
	require.Equal(t, 1, c.Info.LeftOut)
	_, err = OpenFiles([]string{filepath.Join(root, "a.tar.gz")}, Options{})
	requireSentence(t, err, "compressed data")
}

func TestNamesThatAreNotUTF8(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("names are UTF-8 here")
	}
	root := writeTree(t, map[string]string{"good.txt": "text"})
	bad := filepath.Join(root, "caf\xe9.txt")
	if err := os.WriteFile(bad, []byte("text"), 0o600); err != nil {
		t.Skipf("this file system has no such names: %v", err)
	}
	for _, path := range []string{root, bad} {
		_, err := OpenFiles([]string{path}, Options{})
		requireSentence(t, err, `caf\xe9.txt`, "is not UTF-8", "rename")
	}
	require.NoError(t, os.Rename(bad, filepath.Join(root, ".caf\xe9.txt")))
	_, err := OpenFiles([]string{root}, Options{})
	require.NoError(t, err, "hidden files do not count")
}

func TestPathsThatAreNoFiles(t *testing.T) {
	for path, want := range map[string]string{
		"s3://bucket/text": "is a URL", "https://example.com/book.txt": "is a URL", "file:///etc/passwd": "leave out file://",
		"/dev/stdin": "of this process alone", "/dev/fd/0": "of this process alone", "/proc/self/fd/0": "of this process alone", "/dev/../dev/stdin": "of this process alone",
	} {
		_, err := OpenFiles([]string{path}, Options{})
		requireSentence(t, err, want, path)
	}
	_, err := OpenFiles([]string{"/dev/stdinx"}, Options{})
	requireSentence(t, err, "does not exist")
}
