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

// unsupported lists the file formats that octet data prepare reads, by suffix of the name. lines marks
// uncompressed JSON lines, which are text: without an error, they would silently become part of the
// corpus.
var unsupported = []struct {
	suffix, holds string
	lines         bool
}{
	{suffix: ".jsonl", holds: jsonLines, lines: true},
	{suffix: ".ndjson", holds: jsonLines, lines: true},
	{suffix: ".jsonl.gz", holds: "compressed JSON lines"},
	{suffix: ".jsonl.zst", holds: "compressed JSON lines"},
	{suffix: ".parquet", holds: "a Parquet table"},
	{suffix: ".gz", holds: "compressed data"},
	{suffix: ".zst", holds: "compressed data"},
}

const jsonLines = "JSON lines"

// checkFormat returns an error for a file whose name has an unsupported suffix. In
// folders it allows compressed files and tables, which OpenFiles leaves out like other
// binary files.
func checkFormat(f *file) error {
	name := strings.ToLower(path.Base(f.path))
	for _, u := range unsupported {
		if strings.HasSuffix(name, u.suffix) && (f.named || u.lines) {
			return unsupportedFormat(f, u.holds)
		}
	}
	return nil
}

// unsupportedFormat returns the error for an unsupported file.
func unsupportedFormat(f *file, holds string) error {
	if f.named {
		return fmt.Errorf("data: %q holds %s: octet data prepare %s --out DIR makes tokens of its text; train on DIR", f, holds, f)
	}
	return fmt.Errorf("data: %q holds %s: move it away, or make tokens of all files with octet data prepare %s --out DIR, and train on DIR", f, holds, f.from)
}

// checkNoText returns the error for files without any text. If one of them has an
// unsupported format, the error says what reads it.
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
		return false, unsupportedFormat(f, jsonLines)
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
