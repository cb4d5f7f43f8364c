package data

import (
	"fmt"
	"path"
	"strings"
	"unicode/utf8"
)

// unread are the kinds of files that hold text as something else, by how their names
// end, and what makes text of them. They are refused also where a folder has them: a
// corpus without them, or with JSON for text, is not the one that was meant.
var unread = []struct{ suffix, holds, instead string }{
	{".jsonl", "JSON lines", "jq -r .text FILE > FILE.txt"},
	{".ndjson", "JSON lines", "jq -r .text FILE > FILE.txt"},
	{".jsonl.gz", "compressed JSON lines", "gzip -dc FILE | jq -r .text > FILE.txt"},
	{".jsonl.zst", "compressed JSON lines", "zstd -dc FILE | jq -r .text > FILE.txt"},
	{".parquet", "a Parquet table", `python -c "import pandas; print(*pandas.read_parquet('FILE').text, sep='\n')" > FILE.txt`},
	{".gz", "compressed data", "gzip -dc FILE > FILE.txt"},
	{".zst", "compressed data", "zstd -dc FILE > FILE.txt"},
}

// checkFormat refuses a file whose text must be extracted first. An archive that was
// found in a folder holds files, not text, and is left out as other binary files are.
func checkFormat(f *file) error {
	name := strings.ToLower(path.Base(f.path))
	if !f.named && strings.Contains(name, ".tar.") {
		return nil
	}
	for _, u := range unread {
		if strings.HasSuffix(name, u.suffix) {
			return fmt.Errorf("data: %q holds %s, which octet does not read yet: extract the text, as by %s, and keep the original elsewhere", f, u.holds, u.instead)
		}
	}
	return nil
}

// checkName refuses a name that config.toml and data.json, which are UTF-8, could not
// give back.
func checkName(name string) error {
	if !utf8.ValidString(name) {
		return fmt.Errorf("data: the name %q is not UTF-8, as those of a corpus must be: rename the file or its folder", name)
	}
	return nil
}

// checkDevice refuses names of what a process has open: another process, which resumes
// the run, has another file there, or none.
func checkDevice(name string) error {
	for _, device := range []string{"/dev/stdin", "/dev/fd/", "/proc/"} {
		if strings.HasPrefix(path.Clean(name)+"/", strings.TrimSuffix(device, "/")+"/") {
			return fmt.Errorf("data: %q is a file of this process alone: a run must be able to read its text again, so name the file itself, or copy the input into one", name)
		}
	}
	return nil
}
