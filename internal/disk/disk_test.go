package disk

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// If any change fails (before it, half way, or right after it), the file holds its old text
// or all of the new text, and the next write succeeds.
func TestWriteAtomic(t *testing.T) {
	const before, after = "the old text", "the new text, which is longer"
	broken := errors.New("broken")
	for _, at := range []string{"before", "half", "after"} {
		for stop := 0; ; stop++ {
			dir := t.TempDir()
			name := filepath.Join(dir, "file")
			require.NoError(t, WriteAtomic(name, []byte(before)))
			n := -1
			restore := Intercept(func(c Change) error {
				n++
				switch {
				case n < stop:
					return c.Do()
				case n > stop: // the process has ended
				case at == "half" && c.Half != nil:
					return errors.Join(c.Half(), broken)
				case at == "after":
					return errors.Join(c.Do(), broken)
				}
				return broken
			})
			err := WriteAtomic(name, []byte(after))
			restore()
			if n < stop {
				require.NoError(t, err)
				require.Equal(t, 5, stop, "create, write, sync, rename, sync of the folder")
				break
			}
			require.ErrorIs(t, err, broken)
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			require.Contains(t, []string{before, after}, string(text))

			require.NoError(t, WriteAtomic(name, []byte(after)))
			text, err = os.ReadFile(name)
			require.NoError(t, err)
			require.Equal(t, after, string(text))
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Len(t, left, 1)
		}
	}
}

// WriteAtomic removes what lies in place of its partial file; the target of a symlink there
// stays as it is.
func TestWriteAtomicFollowsNoLinks(t *testing.T) {
	dir := t.TempDir()
	name, precious := filepath.Join(dir, "file"), filepath.Join(dir, "precious")
	require.NoError(t, os.WriteFile(precious, []byte("of the user's"), 0o600))
	require.NoError(t, os.Symlink(precious, filepath.Join(dir, ".file.partial")))
	require.NoError(t, WriteAtomic(name, []byte("text")))
	for file, want := range map[string]string{name: "text", precious: "of the user's"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, want, string(text))
	}
	info, err := os.Lstat(name)
	require.NoError(t, err)
	require.True(t, info.Mode().IsRegular())
	require.NoFileExists(t, filepath.Join(dir, ".file.partial"))
}

// MakeDirs works in a folder with write but without read permission. Any other failure to
// sync a name is an error.
func TestMakeDirsInAFolderThatCannotBeRead(t *testing.T) {
	for cause, want := range map[error]error{os.ErrPermission: nil, syscall.EIO: syscall.EIO} {
		dir := filepath.Join(t.TempDir(), "a", "b")
		restore := Intercept(func(c Change) error {
			if c.Op == Sync {
				return &os.PathError{Op: "open", Path: c.Path, Err: cause}
			}
			return c.Do()
		})
		err := MakeDirs(dir)
		restore()
		require.ErrorIs(t, err, want)
		if want == nil {
			require.DirExists(t, dir)
		}
	}
}

// Every function reports its change before it makes it.
func TestIntercept(t *testing.T) {
	dir := t.TempDir()
	sub, file := filepath.Join(dir, "a", "b"), filepath.Join(dir, "a", "b", "file")
	type seen struct {
		op   Op
		path string
	}
	var got []seen
	refuse := false
	restore := Intercept(func(c Change) error {
		got = append(got, seen{c.Op, c.Path})
		if refuse {
			return os.ErrPermission
		}
		return c.Do()
	})
	defer restore()
	require.NoError(t, MakeDirs(sub))
	f, err := Open(file, os.O_WRONLY|os.O_CREATE)
	require.NoError(t, err)
	_, err = io.WriteString(f, "text")
	require.NoError(t, err)
	refuse = true
	n, err := f.Write([]byte("more"))
	require.Zero(t, n)
	require.ErrorIs(t, err, os.ErrPermission)
	refuse = false
	require.NoError(t, f.Truncate(2))
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
	f, err = Open(file, os.O_RDONLY) // changes nothing
	require.NoError(t, err)
	text, err := io.ReadAll(f)
	require.NoError(t, err)
	require.Equal(t, "te", string(text))
	require.NoError(t, f.Close())
	require.NoError(t, Move(file, file+"2"))
	require.NoError(t, RemoveAll(filepath.Join(dir, "a")))
	require.NoDirExists(t, filepath.Join(dir, "a"))
	require.Equal(t, []seen{
		{Mkdir, filepath.Join(dir, "a")},
		{Sync, dir},
		{Mkdir, sub},
		{Sync, filepath.Join(dir, "a")},
		{Create, file},
		{Write, file},
		{Write, file},
		{Truncate, file},
		{Sync, file},
		{Rename, file},
		{Remove, filepath.Join(dir, "a")},
	}, got)

	f, err = Open(filepath.Join(dir, "short"), os.O_WRONLY|os.O_CREATE)
	require.NoError(t, err)
	restore()
	restore = Intercept(func(c Change) error { return c.Half() })
	n, err = f.Write([]byte("text"))
	require.Equal(t, 2, n)
	require.ErrorIs(t, err, io.ErrShortWrite, "a short write without an error")
	restore()
	require.NoError(t, f.Close())
	require.ErrorIs(t, MakeDirs(filepath.Join(f.Name(), "sub")), errNotFolder(t, f.Name()))
}

// errNotFolder returns the operating system's error for a folder within a file.
func errNotFolder(t *testing.T, file string) error {
	t.Helper()
	err := os.MkdirAll(filepath.Join(file, "sub"), 0o777)
	require.Error(t, err)
	return errors.Unwrap(err)
}
