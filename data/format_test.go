package data

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFilesToPrepare checks that naming a file that only octet data prepare reads is an error that
// says so. In a folder, JSON lines are an error and binary files are left out.
func TestFilesToPrepare(t *testing.T) {
	for name, want := range map[string][]string{
		"a.jsonl":     {"JSON lines"},
		"A.JSONL":     {"JSON lines"},
		"a.ndjson":    {"JSON lines"},
		"a.jsonl.gz":  {"compressed JSON lines"},
		"a.jsonl.zst": {"compressed JSON lines"},
		"a.parquet":   {"Parquet"},
		"wiki.txt.gz": {"compressed data"},
		"wiki.zst":    {"compressed data"},
		"a.tar.gz":    {"compressed data"},
	} {
		root := writeTree(t, map[string]string{name: "\x1f\x8b\x00", "b.txt": "text"})
		_, err := OpenFiles([]string{filepath.Join(root, name)}, Options{})
		requireSentence(t, err, append(want, name, "octet data prepare")...)
		c, err := OpenFiles([]string{root}, Options{})
		if want[0] == "JSON lines" {
			requireSentence(t, err, append(want, name, "move it away")...)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, []string{"b.txt"}, paths(c))
		require.Equal(t, 1, c.Info.LeftOut)

		require.NoError(t, os.Remove(filepath.Join(root, "b.txt")))
		_, err = OpenFiles([]string{root}, Options{})
		requireSentence(t, err, append(want, name, "octet data prepare")...)
	}
	root := writeTree(t, map[string]string{"a.json": "{}", ".hidden.jsonl": "{}"})
	c, err := OpenFiles([]string{root}, Options{})
	require.NoError(t, err)
	require.Equal(t, []string{"a.json"}, paths(c))
}

// TestJSONLinesUnderAnotherName checks that JSON lines are an error whatever the file's
// name, and that other JSON and source code are text.
func TestJSONLinesUnderAnotherName(t *testing.T) {
	long := `{"text": "` + strings.Repeat("a", inspectBytes/2) + "\"}\n"
	for _, text := range map[string]string{
		"lines":         "{\"text\": \"a\"}\n{\"text\": \"b\"}\n",
		"no last break": "{\"text\": \"a\"}\n{\"text\": \"b\"}",
		"spaced":        "\ufeff\r\n {\"text\": \"a\"} \r\n\r\n{\"id\": {\"n\": 1}}\r\nplain",
		"many":          strings.Repeat("{\"text\": \"a\"}\n", 10_000),
	} {
		for _, name := range []string{"b.json", "b.txt"} {
			root := writeTree(t, map[string]string{name: text, "c.txt": "text"})
			_, err := OpenFiles([]string{filepath.Join(root, name)}, Options{})
			requireSentence(t, err, name, "JSON lines", "octet data prepare")
			_, err = OpenFiles([]string{root}, Options{})
			requireSentence(t, err, name, "JSON lines", "move it away")
		}
	}
	for what, text := range map[string]string{
		"one object":     `{"a": [{"b": 1}, {"c": 2}]}` + "\n\n",
		"pretty":         "{\n  \"a\": {\n    \"b\": 1\n  }\n}\n",
		"pretty objects": "[\n{\"a\": 1},\n{\"a\": 2}\n]\n",
		"Go":             "package a\n\nfunc f() {}\n",
		"C":              "{\n{}\n}\n",
		"numbers":        "1\n2\n",
		"one, then text": "{\"a\": 1}\ntext\n",
		"long line":      "{\"a\": 1}\n" + `{"a": "` + strings.Repeat("b", inspectBytes) + "\"}\n",
		"at the limit":   long + long,
	} {
		root := writeTree(t, map[string]string{"b.txt": text})
		for _, path := range []string{root, filepath.Join(root, "b.txt")} {
			c, err := OpenFiles([]string{path}, Options{})
			require.NoError(t, err, what)
			require.Equal(t, text, string(c.Train.(Text)), what)
		}
	}
	// A file found in a folder with a zero byte anywhere is left out.
	root := writeTree(t, map[string]string{"a": strings.Repeat("{}\n", inspectBytes) + "\x00", "b.txt": "text"})
	c, err := OpenFiles([]string{root}, Options{})
	require.NoError(t, err)
	require.Equal(t, []string{"b.txt"}, paths(c))
}

func TestNamesThatAreNotUTF8(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("this system may allow UTF-8 names only")
	}
	root := writeTree(t, map[string]string{"good.txt": "text"})
	bad := filepath.Join(root, "caf\xe9.txt")
	if err := os.WriteFile(bad, []byte("text"), 0o600); err != nil {
		t.Skipf("this file system does not allow the name: %v", err)
	}
	for _, path := range []string{root, bad} {
		_, err := OpenFiles([]string{path}, Options{})
		requireSentence(t, err, `caf\xe9.txt`, "is not UTF-8", "rename")
	}
	require.NoError(t, os.Rename(bad, filepath.Join(root, ".caf\xe9.txt")))
	_, err := OpenFiles([]string{root}, Options{})
	require.NoError(t, err, "hidden files are ignored")
}

func TestPathsThatAreNotFiles(t *testing.T) {
	for path, want := range map[string]string{
		"s3://bucket/text": "is a URL", "https://example.com/book.txt": "is a URL", "file:///etc/passwd": "omit file://",
		"/dev/stdin": "in this process only", "/dev/fd/0": "in this process only", "/proc/self/fd/0": "in this process only", "/dev/../dev/stdin": "in this process only",
	} {
		_, err := OpenFiles([]string{path}, Options{})
		requireSentence(t, err, want, path)
	}
	_, err := OpenFiles([]string{"/dev/stdinx"}, Options{})
	requireSentence(t, err, "does not exist")
}
