package data

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// writeTree writes text files to a new folder and returns its path.
func writeTree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		full := filepath.Join(root, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(full), 0o755))
		require.NoError(t, os.WriteFile(full, []byte(text), 0o644))
	}
	return root
}

// link creates a symbolic link, or skips the test if the system forbids it.
func link(t *testing.T, to, name string) {
	t.Helper()
	if err := os.Symlink(to, name); err != nil {
		t.Skipf("cannot create symbolic links: %v", err)
	}
}

// paths returns the paths of the files of a corpus.
func paths(c *Corpus) []string {
	var list []string
	for _, f := range c.Info.Files {
		list = append(list, f.Path)
	}
	return list
}

func TestOpenFilesWalksFolders(t *testing.T) {
	root := writeTree(t, map[string]string{
		"b.txt":       "bbb",
		"a/y":         "yy",
		"a.txt":       "aaa",
		"a/x/deep.md": "deep",
		"a/empty":     "",
		".git/config": "hidden folder",
		"a/.hidden":   "hidden file",
	})
	c, err := OpenFiles([]string{root}, Options{})
	require.NoError(t, err)
	require.Equal(t, []string{"a.txt", "a/x/deep.md", "a/y", "b.txt"}, paths(c))
	require.Equal(t, "aaa\x00deep\x00yy\x00bbb", string(c.Train.(Text)))
	require.Equal(t, KindText, c.Info.Kind)
	require.Equal(t, 256, c.Info.Vocab)
	require.EqualValues(t, 15, c.Info.TrainTokens)
	require.Zero(t, c.Info.ValTokens)
	require.NoError(t, c.Close())

	// The order of the arguments is kept.
	c, err = OpenFiles([]string{filepath.Join(root, "b.txt"), filepath.Join(root, "a")}, Options{})
	require.NoError(t, err)
	require.Equal(t, []string{"b.txt", "x/deep.md", "y"}, paths(c))
}

func TestOpenFilesDoesNotDependOnTheFolder(t *testing.T) {
	files := map[string]string{}
	for i := range 30 {
		files[fmt.Sprintf("sub%d/f%d.txt", i%3, i)] = strings.Repeat(fmt.Sprintf("line %d\n", i), i+1)
	}
	first, err := OpenFiles([]string{writeTree(t, files)}, Options{ValBytes: 300})
	require.NoError(t, err)
	second, err := OpenFiles([]string{writeTree(t, files) + "/./"}, Options{ValBytes: 300})
	require.NoError(t, err)
	require.Equal(t, first.Info, second.Info)
	require.Equal(t, first.Train, second.Train)
	require.Equal(t, first.Val, second.Val)
}

func TestOpenFilesFollowsLinks(t *testing.T) {
	root := writeTree(t, map[string]string{"real.txt": "real", "folder/inside.txt": "inside"})
	outside := writeTree(t, map[string]string{"far.txt": "far", "more/other.txt": "other"})
	link(t, filepath.Join(outside, "far.txt"), filepath.Join(root, "link.txt"))
	link(t, filepath.Join(outside, "more"), filepath.Join(root, "linked"))
	link(t, root, filepath.Join(root, "folder", "loop"))
	c, err := OpenFiles([]string{root}, Options{})
	require.NoError(t, err)
	require.Equal(t, []string{"folder/inside.txt", "link.txt", "real.txt"}, paths(c))
	require.Equal(t, "inside\x00far\x00real", string(c.Train.(Text)))

	// OpenFiles follows a link in its arguments.
	c, err = OpenFiles([]string{filepath.Join(root, "linked")}, Options{})
	require.NoError(t, err)
	require.Equal(t, []string{"other.txt"}, paths(c))

	link(t, filepath.Join(outside, "gone"), filepath.Join(root, "broken.txt"))
	_, err = OpenFiles([]string{root}, Options{})
	require.ErrorContains(t, err, "broken.txt")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestHoldOutOfOneFile(t *testing.T) {
	text := strings.Repeat("0123456789", 100)
	root := writeTree(t, map[string]string{"all.txt": text})
	for _, c := range []struct{ valBytes, held int64 }{{0, 0}, {1, 1}, {99, 99}, {100, 100}, {101, 100}, {5000, 100}} {
		corpus, err := OpenFiles([]string{filepath.Join(root, "all.txt")}, Options{ValBytes: c.valBytes})
		require.NoError(t, err)
		train, val, ok := corpus.Text()
		require.True(t, ok)
		require.Equal(t, text[:1000-c.held], string(train))
		require.Equal(t, text[1000-c.held:], string(val))
		require.Equal(t, []File{{Path: "all.txt", Bytes: 1000, HeldOut: c.held}}, corpus.Info.Files)
	}
}

// TestHoldOutOfFolder checks the hold-out order: whole files by the SHA-256 of
// the path, then the end of the file that exceeds the limit.
func TestHoldOutOfFolder(t *testing.T) {
	files := map[string]string{}
	for i := range 26 {
		name := string(rune('a' + i))
		files[name] = strings.Repeat(name, 10)
	}
	c, err := OpenFiles([]string{writeTree(t, files)}, Options{ValBytes: 25})
	require.NoError(t, err)
	held := map[string]int64{}
	for _, f := range c.Info.Files {
		if f.HeldOut > 0 {
			held[f.Path] = f.HeldOut
		}
	}
	// The lowest SHA-256 of a to z are those of s (043a…), u (0bfe…) and p
	// (148d…), computed independently.
	require.Equal(t, map[string]int64{"s": 10, "u": 10, "p": 5}, held)
	want := "ssssssssss\x00uuuuuuuuuu\x00ppp"
	require.Equal(t, want, string(c.Val.(Text)), "25 bytes including two separators")
	require.NotContains(t, string(c.Train.(Text)), "s")
	require.Contains(t, string(c.Train.(Text)), "\x00ppppp\x00")
}

func TestOpenFilesErrors(t *testing.T) {
	root := writeTree(t, map[string]string{
		"text.txt":      "some text",
		"empty.txt":     "",
		"utf16.txt":     "\xff\xfea\x00b\x00",
		"hollow/.keep":  "x",
		"mixed/a.bin":   "x",
		"mixed/b.txt":   "x",
		"mixed/ids.bin": string(encodeShard(t, []uint16{1, 2})),
		"binary/x.png":  "\x00",
	})
	at := func(names ...string) []string {
		for i, name := range names {
			names[i] = filepath.Join(root, name)
		}
		return names
	}
	for _, c := range []struct {
		name  string
		paths []string
		o     Options
		want  []string
	}{
		{"no path", nil, Options{}, []string{"name a file or a folder"}},
		{"missing", at("nowhere"), Options{}, []string{"nowhere", "does not exist", "name an existing file"}},
		{"empty name", []string{""}, Options{}, []string{`""`, "does not exist"}},
		{"below a file", at("text.txt/x"), Options{}, []string{"text.txt"}},
		{"empty", at("empty.txt"), Options{}, []string{"empty.txt", "is empty"}},
		{"folder without files", at("hollow"), Options{}, []string{"hollow", "no file to read"}},
		{"zero byte", at("utf16.txt"), Options{}, []string{"utf16.txt", "zero byte at offset 3", "UTF-8"}},
		{"shards and text", at("mixed"), Options{}, []string{"ids.bin is a shard, but", "b.txt is text"}},
		{"a shard by its name", at("mixed/a.bin", "text.txt"), Options{}, []string{"a.bin is a shard", "text.txt is text"}},
		{"only binary files", at("binary"), Options{}, []string{"binary", "holds no text", "zero byte"}},
		{"twice", at("text.txt", "text.txt"), Options{}, []string{"text.txt", "named twice"}},
		{"itself and its folder", at("mixed/b.txt", "mixed"), Options{}, []string{"b.txt", "named twice"}},
		{"negative hold-out", at("text.txt"), Options{ValBytes: -1}, []string{"data.val_bytes is -1"}},
		{"negative vocabulary", at("text.txt"), Options{Vocab: -1}, []string{"model.vocab is -1"}},
		{"small vocabulary", at("text.txt"), Options{Vocab: 255}, []string{"vocabulary of 255", "at least 256"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := OpenFiles(c.paths, c.o)
			requireSentence(t, err, c.want...)
		})
	}
}

// requireSentence checks that an error has one line, starts with "data: " and contains
// parts.
func requireSentence(t *testing.T, err error, parts ...string) {
	t.Helper()
	require.Error(t, err)
	require.True(t, strings.HasPrefix(err.Error(), "data: "), err.Error())
	require.NotContains(t, err.Error(), "\n")
	for _, part := range parts {
		require.ErrorContains(t, err, part)
	}
}

// TestFilesThatAreNotText checks that binary files in a folder do not affect the corpus,
// and that naming such a file is an error.
func TestFilesThatAreNotText(t *testing.T) {
	far := strings.Repeat("a", 100_000)
	text := map[string]string{"a.txt": "aaa", "far.txt": far, "x/b.txt": "bbb"}
	want, err := OpenFiles([]string{writeTree(t, text)}, Options{ValBytes: 50})
	require.NoError(t, err)
	text["far.png"], text["x/zero"], text["short.bin"], text["zero.bin"] = far+"\x00", "\x00", "abc", strings.Repeat("\x00", 2000)
	root := writeTree(t, text)
	c, err := OpenFiles([]string{root}, Options{ValBytes: 50})
	require.NoError(t, err)
	require.Equal(t, 4, c.Info.LeftOut)
	require.NoError(t, CheckSame(want.Info, c.Info))
	c.Info.LeftOut = 0
	require.Equal(t, want, c)

	_, err = OpenFiles([]string{filepath.Join(root, "far.png")}, Options{})
	requireSentence(t, err, "far.png", "zero byte at offset 100000")

	ids := string(encodeShard(t, []uint16{1, 2}))
	shards, err := OpenFiles([]string{writeTree(t, map[string]string{"a.bin": ids, "b.bin": ids, "photo.png": "\x00"})}, Options{})
	require.NoError(t, err)
	defer shards.Close()
	require.Equal(t, []string{"a.bin", "b.bin"}, paths(shards))
	require.Equal(t, 1, shards.Info.LeftOut)
	_, err = OpenFiles([]string{writeTree(t, map[string]string{"a.bin": ids, "b.bin": "torn"})}, Options{})
	requireSentence(t, err, "b.bin", "truncated")
}

func TestUnreadableFile(t *testing.T) {
	if runtime.GOOS == "windows" || os.Geteuid() == 0 {
		t.Skip("permission bits do not restrict this user")
	}
	root := writeTree(t, map[string]string{"secret.txt": "x"})
	require.NoError(t, os.Chmod(filepath.Join(root, "secret.txt"), 0))
	_, err := OpenFiles([]string{root}, Options{})
	requireSentence(t, err, "secret.txt", "permission denied", "make it readable")
}

// TestChangedFile reads files whose size differs from the size found.
func TestChangedFile(t *testing.T) {
	fsys := mapFS(map[string]string{"a.txt": "12345"})
	for _, size := range []int64{4, 6, 100} {
		_, err := readText([]*file{{fsys: fsys, path: "a.txt", size: size}}, Info{}, Options{}, MaxInMemory)
		requireSentence(t, err, "a.txt", "changed while it was read")
	}
	_, err := readText([]*file{{fsys: fsys, path: "gone.txt", size: 5}}, Info{}, Options{}, MaxInMemory)
	requireSentence(t, err, "gone.txt", "cannot be read")
}

// FuzzSplit splits its input into files at zero bytes and checks that both streams
// together have exactly the bytes of the files.
func FuzzSplit(f *testing.F) {
	f.Add([]byte("one\x00two\x00three\x00and some more to hold out of training"), int64(20))
	f.Add([]byte(strings.Repeat("abcdefghijklmnopqrstuvwxyz\x00", 20)), int64(31))
	f.Add([]byte("x"), int64(0))
	f.Fuzz(func(t *testing.T, text []byte, valBytes int64) {
		if valBytes < 0 {
			return
		}
		files := map[string]string{}
		var found []*file
		fsys := mapFS(nil)
		var total int64
		for i, part := range strings.Split(string(text), "\x00") {
			if part == "" {
				continue
			}
			name := fmt.Sprintf("%04d.txt", i)
			files[name] = part
			fsys[name] = mapFS(map[string]string{name: part})[name]
			found = append(found, &file{fsys: fsys, path: name, size: int64(len(part))})
			total += int64(len(part))
		}
		holdOutBytes(found, valBytes)
		c, err := readText(found, Info{}, Options{ValBytes: valBytes}, MaxInMemory)
		require.NoError(t, err)
		var heads, tails []string
		var held int64
		for _, f := range found {
			part := files[f.path]
			if head := part[:f.size-f.held]; head != "" {
				heads = append(heads, head)
			}
			held += f.held
		}
		for _, f := range byPathHash(found) {
			if f.held > 0 {
				tails = append(tails, files[f.path][f.size-f.held:])
			}
		}
		require.Equal(t, min(total/10, valBytes), held)
		require.Equal(t, strings.Join(heads, "\x00"), string(c.Train.(Text)))
		all := strings.Join(tails, "\x00")
		require.Equal(t, all[:min(int64(len(all)), valBytes)], string(c.Val.(Text)))
		require.Len(t, c.Info.Files, len(found))
	})
}
