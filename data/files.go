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

// file is one file of a corpus.
type file struct {
	fsys fs.FS
	path string // within fsys; also its name in Info
	from string // the folder of fsys, for messages
	size int64
	held int64 // bytes at its end that are held out of training

	named bool // passed to OpenFiles itself, not found in a folder

	source *source // set for text that is read in windows
}

// String returns the file's path on this machine.
func (f *file) String() string { return filepath.Join(f.from, filepath.FromSlash(f.path)) }

// OpenFiles opens files and folders as a corpus, in the given order. A folder stands
// for all files below it, sorted by slash-separated path. OpenFiles skips empty
// files and names that begin with a dot. It follows links to files, but not links
// to folders. A folder that octet data prepare wrote is a part of the corpus that has its
// own tokenizer, split and documents; a corpus has only such folders, or none. Files that end in .bin are shards (see WriteShard), all others are
// text; a corpus cannot mix them. OpenFiles leaves out files in folders that are
// neither, such as pictures and programs. JSON lines are an error, and so are
// compressed files and Parquet tables in paths.
//
// Of text, the validation stream gets at most a tenth of the bytes and at most
// ValBytes. OpenFiles holds out whole files in the order of the SHA-256 of their
// paths, and the end of the last one. A single file therefore gives its end, a
// folder a sample of its files. Training gets everything else.
//
// Shards with the word "val", "valid" or "validation" in their name are for
// validation only, truncated to ValBytes. If there are none, the end of the last
// shards is held out, at most a tenth of all ids. If all shards have such names and
// ValBytes is 0 (as for evaluation), they form the training stream.
func OpenFiles(paths []string, o Options) (*Corpus, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(paths, IsPrepared) {
		return openPrepared(paths, o)
	}
	files, err := findAll(paths)
	if err != nil {
		return nil, err
	}
	if o.Answers {
		return nil, errNoPrompts(paths[0])
	}
	text, shards, err := classify(files)
	if err != nil {
		return nil, err
	}
	var c *Corpus
	if len(shards) > 0 {
		c, err = openShards(shards, o)
	} else {
		if o.Tokenizer != "" {
			return nil, fmt.Errorf("data: %q is text, which octet trains on as bytes: octet data prepare %s --tokenizer %s --out DIR makes tokens of it; train on DIR", text[0], paths[0], o.Tokenizer)
		}
		holdOutBytes(text, o.ValBytes)
		c, err = readText(text, Info{Kind: KindText}, o, MaxInMemory)
	}
	if err != nil {
		return nil, err
	}
	c.Info.LeftOut = len(files) - len(text) - len(shards)
	return c, nil
}

// errNoPrompts is the error for data without prompts.
func errNoPrompts(path string) error {
	return fmt.Errorf("data: data.loss=answers and train.objective=dpo need data with prompts, but %q has none: prepare it with octet data prepare --kind completion, messages or preference", path)
}

// classify returns the text files or the shards among files; one list is empty. It
// classifies a file in paths by its name alone: reading the file rejects other content.
func classify(files []*file) (text, shards []*file, err error) {
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
			return nil, nil, fmt.Errorf("data: %s is a shard, but %s is text: name shards or text, not both", f, text[0])
		}
	}
	return text, nil, nil
}

func isShard(f *file) bool { return path.Ext(f.path) == ".bin" }

// findAll returns the files of paths and the files in their folders.
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
			return nil, fmt.Errorf("data: %q does not exist: name an existing file or folder", p)
		case err != nil:
			return nil, unreadable(p, err)
		case stat.IsDir():
			fsys := os.DirFS(p)
			if _, err := fs.Stat(fsys, UnfinishedFile); err == nil {
				return nil, fmt.Errorf("data: %q is not complete: start octet data prepare again with the same arguments", p)
			}
			if isRunFolder(fsys, ".") {
				return nil, fmt.Errorf("data: %q is a run folder, whose files change: name another folder, and keep text out of run folders", p)
			}
			found, err := find(fsys, p, func(name string, dir bool) bool {
				return notHidden(name, dir) && !(dir && isRunFolder(fsys, name))
			})
			if err != nil {
				return nil, err
			}
			if len(found) == 0 {
				return nil, fmt.Errorf("data: the folder %q has no file to read: octet ignores hidden names, empty files, linked folders and run folders", p)
			}
			files = append(files, found...)
		case !stat.Mode().IsRegular():
			return nil, fmt.Errorf("data: %q is not a regular file: a resumed run must read it again, so copy it to a file", p)
		case stat.Size() == 0:
			return nil, fmt.Errorf("data: %q is empty: name a file with text in it", p)
		default:
			dir, base := filepath.Split(filepath.Clean(p))
			dir = filepath.Clean(dir)
			files = append(files, &file{fsys: os.DirFS(dir), path: base, from: dir, size: stat.Size(), named: true})
		}
	}
	return files, checkDuplicates(files)
}

// checkDuplicates returns an error if two of the paths include the same file: it could be
// in the training and the validation stream.
func checkDuplicates(files []*file) error {
	seen := make(map[string]bool, len(files))
	for _, f := range files {
		name, err := filepath.Abs(f.String())
		if err != nil {
			return unreadable(f.String(), err)
		}
		if seen[name] {
			return fmt.Errorf("data: %q is named twice, by itself or by a folder: name it once", f.String())
		}
		seen[name] = true
	}
	return nil
}

// find returns the non-empty files of fsys for which keep returns true, sorted by
// path. It skips folders for which keep returns false.
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
		stat, err := fs.Stat(fsys, p) // follows links, unlike d.Info
		if err != nil {
			return unreadable(name, err)
		}
		if stat.Mode().IsRegular() && stat.Size() > 0 {
			files = append(files, &file{fsys: fsys, path: p, from: from, size: stat.Size()})
		}
		return nil
	})
	// WalkDir sorts within each folder only: it visits "a/b" before "a.txt", but as
	// a path "a/b" sorts after "a.txt".
	slices.SortFunc(files, func(a, b *file) int { return strings.Compare(a.path, b.path) })
	return files, err
}

// notHidden reports whether the base name of p does not begin with a dot.
func notHidden(p string, _ bool) bool { return !strings.HasPrefix(path.Base(p), ".") }

// isRunFolder reports whether dir is a run folder: it has the files that every run creates
// first. The files of a run change with every step, so a corpus must not contain them: it
// would differ when the run resumes.
func isRunFolder(fsys fs.FS, dir string) bool {
	for _, name := range []string{".lock", "config.toml"} {
		if stat, err := fs.Stat(fsys, path.Join(dir, name)); err != nil || !stat.Mode().IsRegular() {
			return false
		}
	}
	return true
}

// unreadable returns an error for the system error err, without the path that err
// repeats.
func unreadable(name string, err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		err = pathErr.Err
	}
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return fmt.Errorf("data: %q cannot be opened (%w): raise the limit of open files, for example ulimit -n 1024", name, err)
	}
	return fmt.Errorf("data: %q cannot be read (%w): make it readable or leave it out", name, err)
}

// readError returns an error for err of reading an open file. EOF means that the file
// was truncated since it was opened.
func readError(name string, err error) error {
	if changed, ok := errors.AsType[*changedError](err); ok {
		return changed
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("data: %q has become shorter since it was opened: do not write to it while a run reads it", name)
	}
	return unreadable(name, err)
}
