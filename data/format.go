package data

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"unicode/utf8"
)

// jqText extracts the text of JSON lines.
const jqText = "jq -r .text FILE > FILE.txt"

// unread are the kinds of files whose text must be extracted first, by the ends of their
// names, and a command that extracts it. lines marks those that are JSON lines as they
// are: text, which a folder would silently bring into the corpus.
var unread = []struct {
	suffix, holds, extract string
	lines                  bool
}{
	{suffix: ".jsonl", holds: "JSON lines", extract: jqText, lines: true},
	{suffix: ".ndjson", holds: "JSON lines", extract: jqText, lines: true},
	{suffix: ".jsonl.gz", holds: "compressed JSON lines", extract: "gzip -dc FILE | jq -r .text > FILE.txt"},
	{suffix: ".jsonl.zst", holds: "compressed JSON lines", extract: "zstd -dc FILE | jq -r .text > FILE.txt"},
	{suffix: ".parquet", holds: "a Parquet table", extract: `python -c "import pandas; print(*pandas.read_parquet('FILE').text, sep='\n')" > FILE.txt`},
	{suffix: ".gz", holds: "compressed data", extract: "gzip -dc FILE > FILE.txt"},
	{suffix: ".zst", holds: "compressed data", extract: "zstd -dc FILE > FILE.txt"},
}

// checkFormat refuses a file by its name. A folder may hold compressed files and tables:
// OpenFiles leaves them out as it does other binary files.
func checkFormat(f *file) error {
	name := strings.ToLower(path.Base(f.path))
	for _, u := range unread {
		if strings.HasSuffix(name, u.suffix) && (f.named || u.lines) {
			return unreadFormat(f, u.holds, u.extract)
		}
	}
	return nil
}

// unreadFormat refuses a file. Text that is extracted into a folder would change the
// corpus of the runs that read the folder, so the advice for a found file is another.
func unreadFormat(f *file, holds, extract string) error {
	if f.named {
		return fmt.Errorf("data: %q holds %s, which octet does not read yet: extract the text, as by %s, and name that", f, holds, extract)
	}
	return fmt.Errorf("data: %q holds %s, which octet does not read yet: move it away; a new run can train on its text, extracted as by %s", f, holds, extract)
}

// checkNoText words the error of folders that hold no text. Where they hold text in a
// form that must be extracted, the error says how.
func checkNoText(files []*file) error {
	for _, f := range files {
		named := *f
		named.named = true
		if err := checkFormat(&named); err != nil {
			return err
		}
	}
	return fmt.Errorf("data: %q holds no text: a zero byte, which text has not, is in every one of its files", files[0].from)
}

// inspected is the number of bytes at a file's begin that inspect looks for JSON lines in.
const inspected = 64 << 10

// inspect opens a file and tells what it holds: JSON lines are an error, whatever the
// file's name. binary reports a zero byte in a file that was found in a folder; the reader
// of a named file refuses zero bytes.
func inspect(f *file) (binary bool, err error) {
	r, err := f.fsys.Open(f.path)
	if err != nil {
		return false, unreadable(f.String(), err)
	}
	defer r.Close()
	buf := make([]byte, min(f.size, inspected))
	n, err := io.ReadFull(r, buf)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return false, unreadable(f.String(), err)
	}
	lines := beginsWithJSONLines(buf[:n], int64(n) < f.size)
	for !f.named {
		if bytes.IndexByte(buf[:n], separator) >= 0 {
			return true, nil
		}
		if err != nil { // the end of the file
			break
		}
		n, err = r.Read(buf)
		if err != nil && !errors.Is(err, io.EOF) {
			return false, unreadable(f.String(), err)
		}
	}
	if lines {
		return false, unreadFormat(f, "JSON lines", jqText)
	}
	return false, nil
}

// beginsWithJSONLines reports whether each of the first two non-empty lines is a whole
// JSON object. more says that text follows, so that the last line may be cut.
func beginsWithJSONLines(text []byte, more bool) bool {
	if more {
		text = text[:bytes.LastIndexByte(text, '\n')+1]
	}
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	objects := 0
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		if line[0] != '{' || !json.Valid(line) {
			return false
		}
		if objects++; objects == 2 {
			return true
		}
	}
	return false
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
