package data

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"octet/internal/disk"
)

// file is one file of a corpus that was found and not read yet.
type file struct {
	fsys fs.FS
	path string // within fsys, and its name in Info
	from string // the folder that fsys stands for, for messages
	size int64
	held int64 // bytes at its end that are kept out of training

	named bool // by itself, not by a folder that it was found in

	source *source // of text that is read in windows
}

// String is the file's name on this machine.
func (f *file) String() string { return filepath.Join(f.from, filepath.FromSlash(f.path)) }

// OpenFiles reads files and folders in the order given. A folder stands for all
// the files below it, sorted by their slash-separated path: names that begin
// with a dot and empty files are passed over, links to files are read, links to
// folders are not followed. Files that end in .bin are shards (see WriteShard),
// all others are text; a corpus is one or the other. What was found in a folder and
// is neither, a picture or a program, is left out. JSON lines are refused, and so are
// compressed files and Parquet tables that are named by themselves.
//
// What is held out: of text at most a tenth of the bytes, and no more than
// ValBytes. Files are taken in the order of the SHA-256 of their path, whole
// until the last one, which gives its end; so a single file gives its end, and
// a folder gives a sample of its files. Nothing else is lost to training. Of
// shards, those with the word "val", "valid" or "validation" in their name are
// for validation alone, cut to ValBytes; without any, the end of the last
// shards is held out, again at most a tenth. Where there are no others and ValBytes
// is 0, as for who evaluates on them, they are the stream.
func OpenFiles(paths []string, o Options) (*Corpus, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	files, err := findAll(paths)
	if err != nil {
		return nil, err
	}
	text, shards, err := sortOut(files)
	if err != nil {
		return nil, err
	}
	var c *Corpus
	if len(shards) > 0 {
		c, err = openShards(shards, o)
	} else {
		holdOutBytes(text, o.ValBytes)
		c, err = readText(text, Info{Kind: KindText}, o, MaxInMemory)
	}
	if err != nil {
		return nil, err
	}
	c.Info.LeftOut = len(files) - len(text) - len(shards)
	return c, nil
}

// sortOut finds the text among files or else the shards, of which one is empty. What
// was named is what its name says: whoever reads it refuses it otherwise.
func sortOut(files []*file) (text, shards []*file, err error) {
	for _, f := range files {
		if isShard(f) {
			shards = append(shards, f)
			continue
		}
		if err := checkFormat(f); err != nil {
			return nil, nil, err
		}
		binary, err := inspect(f)
		if err != nil {
			return nil, nil, err
		}
		if !binary {
			text = append(text, f)
		}
	}
	switch {
	case len(text)+len(shards) == 0:
		return nil, nil, checkNoText(files)
	case len(text) == 0:
		return nil, shards, nil
	}
	for _, f := range shards {
		shard := f.named
		if !shard {
			if shard, err = beginsAsShard(f); err != nil {
				return nil, nil, err
			}
		}
		if shard {
			return nil, nil, fmt.Errorf("data: %s is a shard and %s is text: name shards or text, not both", f, text[0])
		}
	}
	return text, nil, nil
}

func isShard(f *file) bool { return path.Ext(f.path) == ".bin" }

// findAll lists the files behind paths.
func findAll(paths []string) ([]*file, error) {
	if len(paths) == 0 {
		return nil, errors.New("data: no files: name a file or a folder")
	}
	var files []*file
	for _, p := range paths {
		if err := disk.CheckLocal(p); err != nil {
			return nil, fmt.Errorf("data: %w", err)
		}
		if err := errors.Join(checkDevice(p), checkName(p)); err != nil {
			return nil, err
		}
		stat, err := os.Stat(p)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("data: %q does not exist: name a file or a folder that does", p)
		case err != nil:
			return nil, unreadable(p, err)
		case stat.IsDir():
			fsys := os.DirFS(p)
			if holdsRun(fsys, ".") {
				return nil, fmt.Errorf("data: the folder %q is that of a run, whose files change: keep runs beside the text, or in a folder of their own in it", p)
			}
			found, err := find(fsys, p, func(name string, dir bool) bool {
				return plainName(name, dir) && !(dir && holdsRun(fsys, name))
			})
			if err != nil {
				return nil, err
			}
			if len(found) == 0 {
				return nil, fmt.Errorf("data: the folder %q holds no file to read: hidden names, empty files, linked folders and those of runs do not count", p)
			}
			files = append(files, found...)
		case !stat.Mode().IsRegular():
			return nil, fmt.Errorf("data: %q is not a regular file: a run must be able to read it again, so copy it into one", p)
		case stat.Size() == 0:
			return nil, fmt.Errorf("data: %q is empty: name a file with text in it", p)
		default:
			dir, base := filepath.Split(filepath.Clean(p))
			dir = filepath.Clean(dir)
			files = append(files, &file{fsys: os.DirFS(dir), path: base, from: dir, size: stat.Size(), named: true})
		}
	}
	return files, checkTwice(files)
}

// checkTwice refuses a file that two of the paths cover: read twice, it could be
// trained on and held out at once.
func checkTwice(files []*file) error {
	seen := make(map[string]bool, len(files))
	for _, f := range files {
		name, err := filepath.Abs(f.String())
		if err != nil {
			return unreadable(f.String(), err)
		}
		if seen[name] {
			return fmt.Errorf("data: %q is named twice: by itself and by a folder, or by two of the paths; name it once", f.String())
		}
		seen[name] = true
	}
	return nil
}

// find lists the non-empty files of fsys that keep accepts, sorted by path. keep
// is asked about folders too, and one that it refuses is not entered.
func find(fsys fs.FS, from string, keep func(path string, dir bool) bool) ([]*file, error) {
	var files []*file
	err := fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		name := filepath.Join(from, filepath.FromSlash(p))
		if err != nil {
			return unreadable(name, err)
		}
		if p == "." {
			return nil
		}
		if !keep(p, d.IsDir()) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if err := checkName(name); err != nil || d.IsDir() {
			return err
		}
		stat, err := fs.Stat(fsys, p) // follows a link, which d.Info would not
		if err != nil {
			return unreadable(name, err)
		}
		if stat.Mode().IsRegular() && stat.Size() > 0 {
			files = append(files, &file{fsys: fsys, path: p, from: from, size: stat.Size()})
		}
		return nil
	})
	// WalkDir sorts within each folder: it enters "a" before it comes to "a.txt",
	// although the path "a/b" sorts after "a.txt".
	slices.SortFunc(files, func(a, b *file) int { return strings.Compare(a.path, b.path) })
	return files, err
}

// plainName accepts names that do not begin with a dot.
func plainName(p string, _ bool) bool { return !strings.HasPrefix(path.Base(p), ".") }

// holdsRun reports whether a folder is that of a run, by what every run has there from its
// first moment on. Its files are no text: they change with every step, and a corpus that
// had them would be another one when the run goes on.
func holdsRun(fsys fs.FS, dir string) bool {
	for _, name := range []string{".lock", "config.toml"} {
		if stat, err := fs.Stat(fsys, path.Join(dir, name)); err != nil || !stat.Mode().IsRegular() {
			return false
		}
	}
	return true
}

// unreadable words an operating system's error, without the path that the
// system repeats.
func unreadable(name string, err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		err = pathErr.Err
	}
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return fmt.Errorf("data: %q cannot be opened (%w): raise the limit of open files, as by ulimit -n 1024", name, err)
	}
	return fmt.Errorf("data: %q cannot be read (%w): make it readable or leave it out", name, err)
}

// readError words the error of reading a file that is open. A file that was cut since
// it was opened ends early.
func readError(name string, err error) error {
	if changed, ok := errors.AsType[*changedError](err); ok {
		return changed
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("data: %q has become shorter since it was opened: nothing may write to it while it is in use", name)
	}
	return unreadable(name, err)
}
