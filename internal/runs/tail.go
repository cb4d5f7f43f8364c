package runs

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"

	"octet/internal/writers"
)

// tail reads the complete lines of a file that grows.
type tail struct {
	path   string
	file   fs.FileInfo // the file that was read; nil: none yet
	offset int64       // of the first line that was not read
	before []byte      // the bytes before offset, at most keptBefore
}

// keptBefore is the number of bytes by which a tail recognizes the file that it read: most
// lines are shorter, and the next step has other bytes.
const keptBefore = 4 << 10

// read calls line for each complete line since the last call. If the file was replaced, or
// truncated and written again, it begins again. Of a line longer than writers.MaxLine it
// passes the beginning, and whole is false. A missing file has no lines.
func (t *tail) read(line func(text []byte, whole bool)) (again bool, err error) {
	info, err := os.Lstat(t.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if !info.Mode().IsRegular() { // a read of a pipe blocks, and a link may lead anywhere
		return false, errors.New("it is not a regular file")
	}
	if unchanged(t.file, info) {
		return false, nil
	}
	f, err := os.Open(t.path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	if t.file != nil && (!os.SameFile(t.file, info) || info.Size() < t.offset || !t.continues(f)) {
		again, t.offset, t.before = true, 0, nil
	}
	t.file = info
	if _, err := f.Seek(t.offset, io.SeekStart); err != nil {
		return again, err
	}
	lines := bufio.NewReaderSize(f, 64<<10)
	for text := []byte(nil); ; {
		var length int64
		text, length, err = writers.ReadLine(lines, text[:0])
		if errors.Is(err, io.EOF) {
			return again, nil // text after the last newline is torn, or being written
		}
		if err != nil {
			return again, err
		}
		t.offset += length
		if length > writers.MaxLine { // its end was not kept
			t.before = t.before[:0]
		} else {
			t.before = append(t.before[:0], text[max(0, len(text)-keptBefore):]...)
		}
		line(text, length <= writers.MaxLine)
	}
}

// continues reports whether f has the bytes that were read last where they were.
func (t *tail) continues(f io.ReaderAt) bool {
	there := make([]byte, len(t.before))
	n, _ := f.ReadAt(there, t.offset-int64(len(there)))
	return bytes.Equal(there[:n], t.before)
}

// unchanged reports whether two states of a path are those of one file without a write in
// between; a is nil for no file.
func unchanged(a, b fs.FileInfo) bool {
	return a != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
