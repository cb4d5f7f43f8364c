package data

import (
	"errors"
	"path/filepath"
)

// FoundFile is a file that FindFiles found.
type FoundFile struct {
	Path  string
	Bytes int64
	Named bool // in paths itself, not in a folder
}

// FindFiles returns the files that OpenFiles would read for paths, by the rules for names, links and
// run folders; it reads none. It omits folders of tokens and everything below the folder skip, which
// is empty for none.
func FindFiles(paths []string, skip string) ([]FoundFile, error) {
	files, err := findAll(paths)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{} // folders: whether files below them are left out
	if skip != "" {
		if skip, err = filepath.Abs(skip); err != nil {
			return nil, err
		}
	}
	var list []FoundFile
	for _, f := range files {
		if f.named || !belowTokens(filepath.Dir(f.String()), f.from, skip, known) {
			list = append(list, FoundFile{Path: f.String(), Bytes: f.size, Named: f.named})
		}
	}
	if len(list) == 0 {
		return nil, errors.New("data: the folders have no file to read besides folders of tokens")
	}
	return list, nil
}

// belowTokens reports whether a folder below from is skip, or a folder of tokens, or below one.
func belowTokens(dir, from, skip string, known map[string]bool) bool {
	below, ok := known[dir]
	if ok {
		return below
	}
	abs, err := filepath.Abs(dir)
	below = err == nil && abs == skip || IsPrepared(dir)
	if !below && filepath.Clean(dir) != filepath.Clean(from) && filepath.Dir(dir) != dir {
		below = belowTokens(filepath.Dir(dir), from, skip, known)
	}
	known[dir] = below
	return below
}
