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

// unsupported lists the file formats whose text must be extracted first, by suffix of the
// name, with a command that extracts it. lines marks uncompressed JSON lines, which are
// text: without an error, they would silently become part of the corpus.
var unsupported = []struct {
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

// checkFormat returns an error for a file whose name has an unsupported suffix. In
// folders it allows compressed files and tables, which OpenFiles leaves out like other
// binary files.
func checkFormat(f *file) error {
	name := strings.ToLower(path.Base(f.path))
	for _, u := range unsupported {
		if strings.HasSuffix(name, u.suffix) && (f.named || u.lines) {
			return unsupportedFormat(f, u.holds, u.extract)
		}
	}
	return nil
}

// unsupportedFormat returns the error for an unsupported file. For a file found in a
// folder it does not advise to extract the text there, which would change the corpus of
// runs that read the folder.
func unsupportedFormat(f *file, holds, extract string) error {
	if f.named {
		return fmt.Errorf("data: %q holds %s, which octet does not read: extract the text, for example with %s, and name the result", f, holds, extract)
	}
	return fmt.Errorf("data: %q holds %s, which octet does not read: move it away; a new run can train on its text, extracted for example with %s", f, holds, extract)
}

// checkNoText returns the error for files without any text. If one of them has an
// unsupported format, the error says how to extract its text.
func checkNoText(files []*file) error {
	for _, f := range files {
		named := *f
		named.named = true
		if err := checkFormat(&named); err != nil {
			return err
		}
	}
	return fmt.Errorf("data: %q holds no text: each of its files contains a zero byte, so all are binary", files[0].from)
}

// inspectBytes is the number of bytes at the start of a file that inspect searches for
// JSON lines.
const inspectBytes = 64 << 10

// inspect reads a file and returns an error if it holds JSON lines, whatever its name.
// binary reports a zero byte in a file found in a folder. Files in paths are not checked
// for zero bytes here: reading them returns an error.
func inspect(f *file) (binary bool, err error) {
	r, err := f.fsys.Open(f.path)
	if err != nil {
		return false, unreadable(f.String(), err)
	}
	defer r.Close()
	buf := make([]byte, min(f.size, inspectBytes))
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
		return false, unsupportedFormat(f, "JSON lines", jqText)
	}
	return false, nil
}

// beginsWithJSONLines reports whether each of the first two non-empty lines is a JSON
// object. more means that more text follows, so the last line may be incomplete.
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

// checkName returns an error for a name that is not UTF-8: config.toml and data.json
// could not store it.
func checkName(name string) error {
	if !utf8.ValidString(name) {
		return fmt.Errorf("data: the name %q is not UTF-8: rename the file or its folder", name)
	}
	return nil
}

// checkDevice returns an error for paths to the open files of a process. Such a path is
// another file, or none, in the process that resumes the run.
func checkDevice(name string) error {
	for _, device := range []string{"/dev/stdin", "/dev/fd/", "/proc/"} {
		if strings.HasPrefix(path.Clean(name)+"/", strings.TrimSuffix(device, "/")+"/") {
			return fmt.Errorf("data: %q exists in this process only: a resumed run must read its text again, so name the file itself, or copy the input to a file", name)
		}
	}
	return nil
}
