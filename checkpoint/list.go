package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"octet/internal/disk"
)

// Dir is the folder of checkpoints in a run's folder.
const Dir = "checkpoints"

// ErrNone says that a run has no whole checkpoint.
var ErrNone = errors.New("no whole checkpoint")

// Entry is a folder that is a checkpoint, by its name.
type Entry struct {
	Step   int
	Path   string
	Damage error // why it is not whole; nil if nothing was found
}

func stepName(step int) string { return fmt.Sprintf("step-%08d", step) }

func parseStep(name string) (step int, ok bool) {
	digits, ok := strings.CutPrefix(name, "step-")
	if !ok {
		return 0, false
	}
	step, err := strconv.Atoi(digits)
	return step, err == nil && step >= 0 && stepName(step) == name
}

// StepOf is the step that a checkpoint's folder is named after; ok is false for
// one that somebody gave another name.
func StepOf(path string) (step int, ok bool) { return parseStep(filepath.Base(path)) }

// List returns the checkpoints in dir, newest first. It compares sizes with
// the manifests and does not read the files: Damage may be nil for one that
// Verify refuses. A folder that does not exist has none.
func List(dir string) ([]Entry, error) {
	names, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var entries []Entry
	for _, n := range names {
		step, ok := parseStep(n.Name())
		if !ok {
			continue
		}
		path := filepath.Join(dir, n.Name())
		m, err := readManifest(path)
		if err == nil {
			err = m.checkSizes(path)
		}
		entries = append(entries, Entry{Step: step, Path: path, Damage: err})
	}
	slices.SortFunc(entries, func(a, b Entry) int { return b.Step - a.Step })
	return entries, nil
}

// Newest opens the newest whole checkpoint in dir and lists the newer ones
// that it passed over, with the damage. Without a whole one the error is
// ErrNone. It reads the candidates whole, to check their sums.
func Newest(dir string) (c *Checkpoint, skipped []Entry, err error) {
	entries, err := List(dir)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		if e.Damage == nil {
			if c, e.Damage = Open(e.Path); e.Damage == nil {
				return c, skipped, nil
			}
		}
		skipped = append(skipped, e)
	}
	return nil, skipped, fmt.Errorf("%s: %w", dir, ErrNone)
}

// Retain deletes checkpoints that are no longer wanted and returns their
// paths. It keeps the keepLast newest undamaged ones, those whose step is a
// multiple of keepEvery (0: none), the newest that Verify finds whole, and
// everything newer than that. With keepLast 0 it deletes no checkpoint. Nor does it
// delete what List finds damaged: that may be somebody's own, or only be out of reach
// for a moment, and there is little of it.
//
// Folders that an interrupted Save or Retain left behind go in any case, so
// no Save may be under way.
func Retain(dir string, keepLast, keepEvery int) (removed []string, err error) {
	if err := RemovePartial(dir); err != nil {
		return nil, err
	}
	if keepLast <= 0 {
		return nil, nil
	}
	entries, err := List(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range unwanted(entries, keepLast, keepEvery) {
		if err := Discard(e.Path); err != nil {
			return removed, err
		}
		removed = append(removed, e.Path)
	}
	return removed, nil
}

// unwanted is what Retain deletes of entries, newest first.
func unwanted(entries []Entry, keepLast, keepEvery int) (list []Entry) {
	intact := slices.DeleteFunc(slices.Clone(entries), func(e Entry) bool { return e.Damage != nil })
	if len(intact) <= keepLast {
		return nil // and nothing needs to be read
	}
	kept := 0
	for _, e := range intact {
		switch {
		case kept == 0 && Verify(e.Path) != nil: // newer than the newest whole one
		case kept < keepLast:
			kept++
		case keepEvery > 0 && e.Step%keepEvery == 0:
		default:
			list = append(list, e)
		}
	}
	return list
}

// RemovePartial deletes what an interrupted Save or Retain left in dir, which may
// be what a full disk lacks.
func RemovePartial(dir string) error {
	names, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, n := range names {
		step, _, ok := strings.Cut(n.Name(), partialMark)
		if _, isStep := parseStep(strings.TrimPrefix(step, ".")); !ok || !isStep || step[0] != '.' {
			continue
		}
		if err := disk.RemoveAll(filepath.Join(dir, n.Name())); err != nil {
			return err
		}
	}
	return nil
}
