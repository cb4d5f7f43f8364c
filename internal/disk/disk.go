// Package disk makes all changes to a run folder: every mkdir, write, sync, truncation,
// rename and removal of checkpoints, config, records and log.
//
// A test can intercept these changes. [Intercept] installs a function that sees each
// [Change] before it happens. The function may make the change, make half of it, wait,
// return an error instead, or kill the process. No environment variable or flag activates
// this: without a call of Intercept the package has no failpoints, and their cost is one
// atomic load beside each system call.
package disk

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
)

// Change is a change to the disk that is about to happen.
type Change struct {
	Op   Op
	Path string
	Do   func() error // makes the change
	Half func() error // of a Write: writes the first half; else nil
}

// Op is a kind of change.
type Op string

// The kinds.
const (
	Mkdir    Op = "mkdir"
	Create   Op = "create" // open with O_CREATE
	Write    Op = "write"
	Truncate Op = "truncate"
	Sync     Op = "sync" // a file, or the names in a folder
	Rename   Op = "rename"
	Remove   Op = "remove"
)

var intercepted atomic.Pointer[func(Change) error]

// Intercept calls f instead of every change until restore is called. The error of f becomes
// that of the change. Intercept is for tests, one at a time. Several goroutines may call f
// concurrently.
func Intercept(f func(Change) error) (restore func()) {
	intercepted.Store(&f)
	return func() { intercepted.Store(nil) }
}

func change(op Op, path string, do func() error) error {
	if f := intercepted.Load(); f != nil {
		return (*f)(Change{Op: op, Path: path, Do: do})
	}
	return do()
}

// MakeDir makes a folder in an existing one.
func MakeDir(path string) error {
	return change(Mkdir, path, func() error { return os.Mkdir(path, 0o777) })
}

// MakeDirs makes a folder and its parents, and syncs their names to disk where permissions
// allow.
func MakeDirs(path string) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return os.MkdirAll(path, 0o777) // returns the error if path is not a folder
	}
	parent := filepath.Dir(path)
	if parent == path { // an absent drive
		return MakeDir(path)
	}
	if err := MakeDirs(parent); err != nil {
		return err
	}
	if err := MakeDir(path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	// A folder with write permission but without read permission cannot be synced.
	if err := SyncDir(parent); !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return nil
}

// Move renames a file or a folder.
func Move(from, to string) error {
	return change(Rename, from, func() error { return os.Rename(from, to) })
}

// RemoveAll removes a file or a folder with its contents, if it exists.
func RemoveAll(path string) error {
	return change(Remove, path, func() error { return os.RemoveAll(path) })
}

// SyncDir makes the names in a folder survive a power cut. Windows has no such call: there
// the file system's journal decides. Network file systems that return "unsupported" are no
// error.
func SyncDir(path string) error {
	return change(Sync, path, func() (err error) {
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
	})
}

// WriteAtomic writes or replaces a small file: at any time the file holds its old content
// or all of text. When WriteAtomic returns nil, the file survives a power cut. One process
// at a time may write a file. WriteAtomic removes the partial file of a process that died,
// rather than write into it, since it might be a symlink to another file.
func WriteAtomic(name string, text []byte) error {
	dir, base := filepath.Split(name)
	if dir == "" {
		dir = "."
	}
	partial := filepath.Join(dir, "."+base+".partial")
	create := func() (*File, error) { return Open(partial, os.O_WRONLY|os.O_CREATE|os.O_EXCL) }
	f, err := create()
	if errors.Is(err, fs.ErrExist) {
		if err := RemoveAll(partial); err != nil {
			return err
		}
		f, err = create()
	}
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = Move(partial, name)
	}
	if err != nil {
		return errors.Join(err, RemoveAll(partial))
	}
	return SyncDir(dir)
}

// File is an open file. Methods may be called from any goroutine, like those of os.File.
type File struct{ f *os.File }

var _ io.ReadWriteCloser = (*File)(nil)

// Open opens a file with the flags of package os.
func Open(name string, flag int) (*File, error) {
	var f *os.File
	open := func() (err error) {
		f, err = os.OpenFile(name, flag, 0o666)
		return err
	}
	var err error
	if flag&os.O_CREATE != 0 {
		err = change(Create, name, open)
	} else {
		err = open()
	}
	if err != nil {
		return nil, err
	}
	return &File{f}, nil
}

// Name returns the name that the file was opened with.
func (f *File) Name() string { return f.f.Name() }

// Stat describes the open file, even if another file has its name now.
func (f *File) Stat() (fs.FileInfo, error) { return f.f.Stat() }

// Read implements io.Reader.
func (f *File) Read(p []byte) (int, error) { return f.f.Read(p) }

// Write implements io.Writer.
func (f *File) Write(p []byte) (n int, err error) {
	hook := intercepted.Load()
	if hook == nil {
		return f.f.Write(p)
	}
	write := func(p []byte) func() error {
		return func() (err error) {
			n, err = f.f.Write(p)
			return err
		}
	}
	err = (*hook)(Change{Op: Write, Path: f.Name(), Do: write(p), Half: write(p[:len(p)/2])})
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return n, err
}

// Truncate cuts the file to a length.
func (f *File) Truncate(length int64) error {
	return change(Truncate, f.Name(), func() error { return f.f.Truncate(length) })
}

// Sync syncs the file to disk.
func (f *File) Sync() error { return change(Sync, f.Name(), f.f.Sync) }

// Close closes the file.
func (f *File) Close() error { return f.f.Close() }
