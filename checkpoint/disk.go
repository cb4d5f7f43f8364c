package checkpoint

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
)

// Every change to the disk goes through this file, so that a test can stop
// the world before any one of them.

// failpoint is called before each change with its name (mkdir, create, write,
// sync, rename, remove) and the path; an error takes the change's place.
var failpoint = func(op, path string) error { return nil }

func makeDir(path string) error {
	if err := failpoint("mkdir", path); err != nil {
		return err
	}
	return os.Mkdir(path, 0o777)
}

func rename(from, to string) error {
	if err := failpoint("rename", from); err != nil {
		return err
	}
	return os.Rename(from, to)
}

func removeAll(path string) error {
	if err := failpoint("remove", path); err != nil {
		return err
	}
	return os.RemoveAll(path)
}

// syncDir makes the names in a folder survive a power cut. Windows has no such
// call: there a rename is as durable as the file system's journal makes it.
// Neither do some network file systems, which say so.
func syncDir(path string) error {
	if err := failpoint("sync", path); err != nil {
		return err
	}
	if runtime.GOOS == "windows" {
		return nil
	}
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil && !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, syscall.EINVAL) {
		return err
	}
	return nil
}

// writeFile creates a file in dir, fills it and syncs it to disk. The entry
// describes what was written.
func writeFile(dir, name string, fill func(io.Writer) error) (entry fileEntry, err error) {
	path := filepath.Join(dir, name)
	if err := failpoint("create", path); err != nil {
		return fileEntry{}, err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return fileEntry{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	sum := &summingFile{f: f, sha: sha256.New()}
	buffer := bufio.NewWriterSize(sum, 1<<20)
	if err := fill(buffer); err != nil {
		return fileEntry{}, err
	}
	if err := buffer.Flush(); err != nil {
		return fileEntry{}, err
	}
	if err := failpoint("sync", path); err != nil {
		return fileEntry{}, err
	}
	return fileEntry{Name: name, Size: sum.size, SHA256: hex.EncodeToString(sum.sha.Sum(nil))}, f.Sync()
}

// summingFile counts and sums what it writes.
type summingFile struct {
	f    *os.File
	sha  hash.Hash
	size int64
}

func (s *summingFile) Write(p []byte) (int, error) {
	if err := failpoint("write", s.f.Name()); err != nil {
		return 0, err
	}
	n, err := s.f.Write(p)
	s.sha.Write(p[:n])
	s.size += int64(n)
	return n, err
}
