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

// Whatever fails, before it happens, half way or right behind it, a file has its
// old text or all of the new one, and the next writer is not in the way of what is
// left.
func TestWriteWhole(t *testing.T) {
	const before, after = "what was there", "what comes, which is longer"
	broken := errors.New("broken")
	for _, at := range []string{"before", "half", "behind"} {
		for stop := 0; ; stop++ {
			dir := t.TempDir()
			name := filepath.Join(dir, "file")
			require.NoError(t, WriteWhole(name, []byte(before)))
			n := -1
			restore := Intercept(func(c Change) error {
				n++
				switch {
				case n < stop:
					return c.Do()
				case n > stop: // the process is gone
				case at == "half" && c.Half != nil:
					return errors.Join(c.Half(), broken)
				case at == "behind":
					return errors.Join(c.Do(), broken)
				}
				return broken
			})
			err := WriteWhole(name, []byte(after))
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

			require.NoError(t, WriteWhole(name, []byte(after)))
			text, err = os.ReadFile(name)
			require.NoError(t, err)
			require.Equal(t, after, string(text))
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Len(t, left, 1)
		}
	}
}

// What lies where the new text is written first goes away, and what a link there
// leads to stays as it is.
func TestWriteWholeFollowsNoLinks(t *testing.T) {
	dir := t.TempDir()
	name, precious := filepath.Join(dir, "file"), filepath.Join(dir, "precious")
	require.NoError(t, os.WriteFile(precious, []byte("of the user's"), 0o600))
	require.NoError(t, os.Symlink(precious, filepath.Join(dir, ".file.partial")))
	require.NoError(t, WriteWhole(name, []byte("text")))
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

// A folder may be made in one that can be written and not read; that its name cannot
// be brought to the disk for another reason is an error.
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

// Every function tells of its change before it happens.
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
	require.ErrorIs(t, err, io.ErrShortWrite, "a disk that says nothing")
	restore()
	require.NoError(t, f.Close())
	require.ErrorIs(t, MakeDirs(filepath.Join(f.Name(), "sub")), errNotFolder(t, f.Name()))
}

// errNotFolder is what the operating system says of a folder within a file.
func errNotFolder(t *testing.T, file string) error {
	t.Helper()
	err := os.MkdirAll(filepath.Join(file, "sub"), 0o777)
	require.Error(t, err)
	return errors.Unwrap(err)
}
