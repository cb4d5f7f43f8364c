//go:build (cuda || gaudi || mpi) && cgo && linux

package dynlib

import (
	"cmp"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// build compiles C source into a shared library that links the libraries in needs.
func build(t *testing.T, source string, needs ...string) (path string) {
	dir := t.TempDir()
	file := filepath.Join(dir, "vendor.c")
	require.NoError(t, os.WriteFile(file, []byte(source), 0o666))
	path = filepath.Join(dir, "vendor.so")
	out, err := exec.Command(cmp.Or(os.Getenv("CC"), "gcc"), append([]string{"-shared", "-fPIC", "-Wl,--no-as-needed", "-o", path, file}, needs...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

const (
	none     = "OCTET_TEST_LIBRARY" // names no file
	required = " one two"
	optional = " three four"
)

type table = *[4]unsafe.Pointer

func TestOpenLooksUpInOrder(t *testing.T) {
	path := build(t, `int four, two, one;`)
	l, err := Open[table](none, []string{path}, required, optional, nil)
	require.NoError(t, err)
	require.Equal(t, path, l.Path)
	require.Equal(t, []string{"three"}, l.Missing)
	handle, err := load(path)
	require.NoError(t, err)
	for i, name := range []string{"one", "two", "", "four"} {
		if name == "" {
			require.Nil(t, l.Table[i])
			continue
		}
		require.NotNil(t, l.Table[i])
		require.Equal(t, symbol(handle, name), l.Table[i], name)
	}
}

func TestOpenLoadsOncePerListOfNames(t *testing.T) {
	path := build(t, `int four, three, two, one;`)
	l, err := Open[table](none, []string{path}, required, optional, nil)
	require.NoError(t, err)
	again, err := Open[table](none, []string{path}, required, optional, nil)
	require.NoError(t, err)
	require.Same(t, l, again)
	for _, names := range [][2]string{{required, ""}, {" two", optional}} {
		other, err := Open[table](none, []string{path}, names[0], names[1], nil)
		require.NoError(t, err)
		require.NotSame(t, l, other, "%q", names)
	}
}

// Open takes the first library that loads and has the required functions, unless the
// environment variable names one.
func TestOpenTakesTheFirstUsableLibrary(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.so")
	poor, good := build(t, `int two;`), build(t, `int one, two;`)
	l, err := Open[table](none, []string{missing, poor, good}, required, optional, nil)
	require.NoError(t, err)
	require.Equal(t, good, l.Path)
	require.Equal(t, []string{"three", "four"}, l.Missing)

	t.Setenv(none, poor)
	_, err = Open[table](none, []string{good}, required, optional, nil)
	require.EqualError(t, err, poor+" has no one")
}

func TestOpenErrors(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.so")
	poor := build(t, `int two;`)
	_, err := Open[table](none, []string{missing, poor, "libnowhere.so"}, required, optional, nil)
	require.EqualError(t, err, poor+" has no one; not found: "+missing+", libnowhere.so")

	// If a library that the file needs is missing, the error is the loader's.
	needed := build(t, `int three;`)
	path := build(t, `int one, two;`, needed)
	require.NoError(t, os.Remove(needed))
	_, err = Open[table](none, []string{path}, required, optional, nil)
	require.EqualError(t, err, needed+": cannot open shared object file: No such file or directory")
}

func TestLoadedLoadsNothing(t *testing.T) {
	path := build(t, `int one, two;`)
	require.False(t, Loaded(path))
	require.False(t, Loaded(path), "asking loads nothing")
	_, err := Open[table](none, []string{path}, required, optional, nil)
	require.NoError(t, err)
	require.True(t, Loaded(path))
}

// Open unloads a file that accept rejects and takes the next one. A file that Open has
// returned stays loaded.
func TestOpenUnloadsRejectedFiles(t *testing.T) {
	newer, older := build(t, `int one, two;`), build(t, `int one, two;`)
	unfit := errors.New("it is too new")
	accept := func(path string) error {
		if path == newer {
			return unfit
		}
		return nil
	}
	l, err := Open[table](none, []string{newer, older}, required, optional, accept)
	require.NoError(t, err)
	require.Equal(t, older, l.Path)
	require.False(t, Loaded(newer))
	t.Setenv(none, newer)
	_, err = Open[table](none, []string{older}, required, optional, accept)
	require.EqualError(t, err, unfit.Error())

	_, err = Open[table](none, nil, required, optional, nil)
	require.NoError(t, err)
	_, err = Open[table](none, nil, required, optional, accept)
	require.EqualError(t, err, unfit.Error())
	require.True(t, Loaded(newer))
}

// For a bare name, Path is the file that the loader found.
func TestPathIsTheFile(t *testing.T) {
	l, err := Open[*[1]unsafe.Pointer](none, []string{"libc.so.6"}, " malloc", "", nil)
	require.NoError(t, err)
	require.True(t, filepath.IsAbs(l.Path), l.Path)
}
