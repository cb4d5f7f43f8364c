package runs

import (
	"bufio"
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
}

// read calls line for each complete line since the last call. If the file was replaced, or
// truncated below what was read, it begins again. Of a line longer than writers.MaxLine it
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
	if t.file != nil && (!os.SameFile(t.file, info) || info.Size() < t.offset) {
		again, t.offset = true, 0
	}
	t.file = info
	if info.Size() == t.offset {
		return again, nil
	}
	f, err := os.Open(t.path)
	if err != nil {
		return again, err
	}
	defer f.Close()
	if _, err := f.Seek(t.offset, io.SeekStart); err != nil {
		return again, err
	}
	lines := bufio.NewReaderSize(f, 64<<10)
	for text := []byte(nil); ; {
		var length int64
		text, length, err = writers.ReadLine(lines, text[:0])
		if errors.Is(err, io.EOF) {
			return again, nil // what follows the last newline is torn, or being written
		}
		if err != nil {
			return again, err
		}
		t.offset += length
		line(text, length <= writers.MaxLine)
	}
}
