// Package disk is how a run changes its folder: every folder that is made, every
// write, sync, truncation, rename and removal, be it of a checkpoint, the
// config, the records or the log, goes through here.
//
// Thus there is one place in front of which a test can stop the world. [Intercept]
// puts a function there that sees each [Change] before it happens and may let it
// happen, do half of it, wait, return an error in its place, or kill the process.
// Nothing else reaches it, no environment variable and no flag: a program that
// does not call Intercept has no failpoints, and pays for them with a look at a
// pointer beside a call of the operating system.
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
	Create   Op = "create" // open a file that may be made by it
	Write    Op = "write"
	Truncate Op = "truncate"
	Sync     Op = "sync" // of a file, or of the names in a folder
	Rename   Op = "rename"
	Remove   Op = "remove"
)

var intercepted atomic.Pointer[func(Change) error]

// Intercept calls f in place of every change from now on until restore is called.
// The error that f returns is the change's. It is for tests, and for one at a time.
// Changes come from several goroutines at once, and so do the calls of f.
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

// MakeDir makes a folder in one that exists.
func MakeDir(path string) error {
	return change(Mkdir, path, func() error { return os.Mkdir(path, 0o777) })
}

// MakeDirs makes a folder and those on the way to it, and brings their names to
// the disk, where that is permitted.
func MakeDirs(path string) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return os.MkdirAll(path, 0o777) // which says what is wrong, if it is no folder
	}
	parent := filepath.Dir(path)
	if parent == path { // a drive that is not there
		return MakeDir(path)
	}
	if err := MakeDirs(parent); err != nil {
		return err
	}
	if err := MakeDir(path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	// Who may write into a folder need not be allowed to open it, and so to sync it.
	if err := SyncDir(parent); !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return nil
}

// Move renames a file or a folder.
func Move(from, to string) error {
	return change(Rename, from, func() error { return os.Rename(from, to) })
}

// RemoveAll removes a file or a folder with all that is in it, if it is there.
func RemoveAll(path string) error {
	return change(Remove, path, func() error { return os.RemoveAll(path) })
}

// SyncDir makes the names in a folder survive a power cut. Windows has no such
// call: there a rename is as durable as the file system's journal makes it.
// Neither do some network file systems, which say so.
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

// WriteWhole writes or replaces a small file such that, whatever happens, there is
// either what was there before or all of text. When it returns without an error,
// the file survives a power cut. One process at a time may write a file; what one
// that died has left beside it, the next one removes. It is never written into: it
// might be a link to another file.
func WriteWhole(name string, text []byte) error {
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

// File is an open file. Methods may be called from any goroutine, as those of
// os.File.
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

// Name is the name that the file was opened by.
func (f *File) Name() string { return f.f.Name() }

// Stat describes the open file, whatever has its name now.
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

// Sync brings what was written to the disk.
func (f *File) Sync() error { return change(Sync, f.Name(), f.f.Sync) }

// Close closes the file.
func (f *File) Close() error { return f.f.Close() }
