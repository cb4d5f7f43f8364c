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

// Dir is the name of the folder of checkpoints in a run folder.
const Dir = "checkpoints"

// ErrNone is the error of Newest if a run has no valid checkpoint.
var ErrNone = errors.New("no valid checkpoint")

// Entry is a folder with the name of a checkpoint.
type Entry struct {
	Step   int
	Path   string
	Damage error // the damage found; nil if none
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

// StepOf returns the step in the name of a checkpoint's folder; ok is false if
// the folder has another name.
func StepOf(path string) (step int, ok bool) { return parseStep(filepath.Base(path)) }

// List returns the checkpoints in dir, newest first; none if dir does not exist.
// It compares file sizes with the manifests and does not read the files, so
// Damage can be nil for a checkpoint that fails Verify.
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

// Newest opens the newest valid checkpoint in dir and returns the newer ones
// that it skipped, with their damage. If there is no valid one, the error is
// ErrNone. Newest reads all bytes of the candidates to verify their checksums.
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

// Retain deletes old checkpoints and returns their paths. It keeps the keepLast
// newest undamaged ones, those whose step is a multiple of keepEvery (0: none), the
// newest one that passes Verify, and everything newer than that. With keepLast 0 it
// deletes no checkpoint. It never deletes checkpoints that List finds damaged: such a
// folder may be the user's, or unreachable only for a moment, and there are few.
//
// Retain always deletes the partial folders of interrupted Saves and Retains, so
// no Save may run at the same time, and no checkpoint of ranks may be unfinished.
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
	for _, e := range toDelete(entries, keepLast, keepEvery) {
		if err := Discard(e.Path); err != nil {
			return removed, err
		}
		removed = append(removed, e.Path)
	}
	return removed, nil
}

// toDelete returns the entries that Retain deletes. entries are newest first.
func toDelete(entries []Entry, keepLast, keepEvery int) (list []Entry) {
	intact := slices.DeleteFunc(slices.Clone(entries), func(e Entry) bool { return e.Damage != nil })
	if len(intact) <= keepLast {
		return nil // without reading any checkpoint
	}
	kept := 0
	for _, e := range intact {
		switch {
		case kept == 0 && Verify(e.Path) != nil: // keep: newer than the newest valid one
		case kept < keepLast:
			kept++
		case keepEvery > 0 && e.Step%keepEvery == 0:
		default:
			list = append(list, e)
		}
	}
	return list
}

// RemovePartial deletes the folders that an interrupted Save or Retain left in dir.
// That can free the space that a full disk lacks.
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
