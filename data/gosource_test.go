package data

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeGoRoot returns the files of a fake Go installation.
func fakeGoRoot() map[string]string {
	files := map[string]string{
		"VERSION":                      "go9.9.9\ntime 2030-01-01T00:00:00Z\n",
		"src/cmd/go/main.go":           "package main // a command\n",
		"src/vendor/x/y.go":            "package y // vendored\n",
		"src/fmt/testdata/bad.go":      "package bad // test data\n",
		"src/fmt/fmt_test.go":          "package fmt // a test\n",
		"src/fmt/asm_amd64.s":          "TEXT\n",
		"src/fmt/doc.md":               "text\n",
		"src/.hidden/h.go":             "package hidden\n",
		"src/fmt/.#lock.go":            "package lock\n",
		"src/empty.go":                 "",
		"src/internal/cmdline/line.go": "package cmdline\n",
		"pkg/outside.go":               "package outside\n",
	}
	for i := range 100 {
		files[fmt.Sprintf("src/p%02d/f.go", i)] = fmt.Sprintf("package p%02d // %s\n", i, strings.Repeat("x", i))
	}
	return files
}

func TestOpenGoSource(t *testing.T) {
	root := writeTree(t, fakeGoRoot())
	c, err := OpenGoSource(root, "go9.9.9", Options{ValBytes: 200})
	require.NoError(t, err)
	require.Equal(t, KindGoSource, c.Info.Kind)
	require.Equal(t, "go9.9.9", c.Info.GoVersion)
	require.Len(t, c.Info.Files, 101)
	require.Equal(t, "internal/cmdline/line.go", c.Info.Files[0].Path)
	require.Equal(t, "p99/f.go", c.Info.Files[100].Path)
	require.EqualValues(t, 200, c.Info.ValTokens)

	train, val, _ := c.Text()
	heldFiles, heldBytes := 0, int64(0)
	for _, f := range c.Info.Files {
		text := fakeGoRoot()["src/"+f.Path]
		if f.HeldOut > 0 {
			require.Equal(t, f.Bytes, f.HeldOut, "whole files are held out")
			require.NotContains(t, string(train), text)
			heldFiles++
			heldBytes += f.Bytes
		} else {
			require.Contains(t, string(train), text)
			require.NotContains(t, string(val), text)
		}
	}
	require.Equal(t, 13, heldFiles, "the number of the 101 paths with a hash in the lowest tenth")
	require.Greater(t, heldBytes, int64(200))

	// The training stream does not depend on ValBytes.
	more, err := OpenGoSource(root, "go9.9.9", Options{ValBytes: 1 << 20})
	require.NoError(t, err)
	require.Equal(t, c.Train, more.Train)
	require.Equal(t, heldBytes+int64(heldFiles)-1, more.Val.Len())
	require.EqualValues(t, val, more.Val.(Text)[:200])
}

func TestOpenGoSourceThroughLinks(t *testing.T) {
	root := writeTree(t, fakeGoRoot())
	direct, err := OpenGoSource(root, "go9.9.9", Options{ValBytes: 200})
	require.NoError(t, err)

	linked := filepath.Join(t.TempDir(), "go")
	link(t, root, linked)
	c, err := OpenGoSource(linked, "go9.9.9", Options{ValBytes: 200})
	require.NoError(t, err)
	require.Equal(t, direct.Info, c.Info)

	// Some distributions link src only.
	split := t.TempDir()
	link(t, filepath.Join(root, "src"), filepath.Join(split, "src"))
	c, err = OpenGoSource(split, "go9.9.9", Options{ValBytes: 200})
	require.NoError(t, err)
	require.Equal(t, direct.Info, c.Info)
}

func TestOpenEmbedded(t *testing.T) {
	files := map[string]string{}
	for name, text := range fakeGoRoot() {
		if inside, ok := strings.CutPrefix(name, "src/"); ok {
			files[inside] = text
		}
	}
	c, err := OpenEmbedded(mapFS(files), Options{ValBytes: 200})
	require.NoError(t, err)
	same, err := OpenGoSource(writeTree(t, fakeGoRoot()), "go9.9.9", Options{ValBytes: 200})
	require.NoError(t, err)
	require.Equal(t, KindEmbedded, c.Info.Kind)
	require.Empty(t, c.Info.GoVersion)
	require.Equal(t, same.Info.SHA256, c.Info.SHA256)
	require.Equal(t, same.Train, c.Train)
	require.Equal(t, same.Val, c.Val)
}

func TestSourceErrors(t *testing.T) {
	_, err := OpenGoSource(t.TempDir(), "", Options{})
	requireSentence(t, err, "no src folder", "GOROOT")
	_, err = OpenGoSource(writeTree(t, map[string]string{"src/x.txt": "x"}), "", Options{})
	requireSentence(t, err, "no .go files")
	_, err = OpenEmbedded(mapFS(nil), Options{})
	requireSentence(t, err, "no .go files", "embedded")
	_, err = OpenEmbedded(mapFS(map[string]string{"a.go": "x"}), Options{ValBytes: -1})
	requireSentence(t, err, "data.val_bytes")
}

func TestFindGoRoot(t *testing.T) {
	root := writeTree(t, fakeGoRoot())
	empty := t.TempDir()

	t.Run("without a go command", func(t *testing.T) {
		t.Setenv("PATH", empty)
		t.Setenv("GOROOT", root)
		found, version, err := FindGoRoot(t.Context())
		require.NoError(t, err)
		require.Equal(t, root, found)
		require.Equal(t, "go9.9.9", version)
	})
	t.Run("without anything", func(t *testing.T) {
		t.Setenv("PATH", empty)
		for _, goroot := range []string{"", empty} {
			t.Setenv("GOROOT", goroot)
			_, _, err := FindGoRoot(t.Context())
			require.ErrorIs(t, err, ErrNoGo)
		}
	})
	t.Run("with a go command", func(t *testing.T) {
		if runtime.GOOS == "windows" {
			t.Skip("the stand-in for the go command is a shell script")
		}
		bin := t.TempDir()
		script := "#!/bin/sh\n[ \"$*\" = 'env GOROOT GOVERSION' ] || exit 1\necho '" + root + "'\necho \"go8.8.8-$GOTOOLCHAIN\"\n"
		require.NoError(t, os.WriteFile(filepath.Join(bin, "go"), []byte(script), 0o755))
		t.Setenv("PATH", bin)
		t.Setenv("GOROOT", empty)
		t.Setenv("GOTOOLCHAIN", "auto")
		found, version, err := FindGoRoot(t.Context())
		require.NoError(t, err)
		require.Equal(t, root, found)
		require.Equal(t, "go8.8.8-local", version)

		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		_, _, err = FindGoRoot(cancelled)
		require.ErrorIs(t, err, context.Canceled)
	})
}
