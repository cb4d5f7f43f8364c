package runs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"octet/internal/config"
	"octet/internal/writers"
)

// findDepth is the number of folders below the named one in which Find looks for runs: a
// folder of sweeps holds sweeps, which hold runs.
const findDepth = 4

// Find returns the folders of the runs in dir, which may be a run itself, in the order of
// their names. It follows no links, and looks at no folder inside a run.
func Find(dir string) (found []string, err error) {
	if IsRun(dir) {
		return []string{dir}, nil
	}
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrPermission) && path != dir, errors.Is(err, fs.ErrNotExist) && path != dir:
			return nil
		case err != nil:
			return err
		case !e.IsDir():
			return nil
		case path != dir && strings.HasPrefix(e.Name(), "."):
			return fs.SkipDir
		case IsRun(path):
			found = append(found, path)
			return fs.SkipDir
		}
		below, err := filepath.Rel(dir, path)
		if err == nil && strings.Count(below, string(filepath.Separator)) >= findDepth {
			return fs.SkipDir
		}
		return err
	})
	slices.SortFunc(found, func(a, b string) int { return cmp.Or(compareNames(a, b), strings.Compare(a, b)) })
	return found, err
}

// IsRun reports whether dir is a run folder that has begun to train.
func IsRun(dir string) bool {
	for _, name := range []string{config.RunFile, writers.MetricsFile} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

// OpenAll opens all runs in some folders. The runs' names are unique: a folder that is
// itself a run has its own name, others begin below the folder. A run that several folders
// hold is opened once.
func OpenAll(dirs ...string) (list []*Run, err error) {
	seen := map[string]int{}
	for _, dir := range dirs {
		found, err := Find(dir)
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("%s holds no run", dir)
		}
		for _, path := range found {
			if slices.ContainsFunc(list, func(r *Run) bool { return filepath.Clean(r.Dir) == filepath.Clean(path) }) {
				continue
			}
			r, err := Open(path)
			if err != nil {
				return nil, err
			}
			r.NameBelow(dir)
			if seen[r.Name]++; seen[r.Name] > 1 {
				r.Name = fmt.Sprintf("%s (%d)", r.Name, seen[r.Name])
			}
			list = append(list, r)
		}
	}
	return list, nil
}
