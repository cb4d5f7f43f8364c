package sweep

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"octet/backend"
	"octet/internal/config"
	"octet/internal/hostmem"
	"octet/run"
	"octet/train"
)

// check checks the runs that are not done, and the run folders of all runs. need is the
// memory of the largest run, in bytes; accelerators says that a backend has memory of its own.
// The error lists all problems.
func (s *Sweep) check(ctx context.Context, o Options) (need int64, accelerators bool, err error) {
	var all problems
	all.add("", s.setPlaces())
	before, err := readManifest(s.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, false, err
	}
	pending := map[*Variant]bool{}
	for _, r := range s.rows {
		pending[r.Variant] = pending[r.Variant] || r.State == Pending
		if run.Exists(filepath.Join(s.Dir, r.Folder)) {
			all.add(filepath.Join(s.Dir, r.Folder), s.checkRun(r, before))
		}
	}
	text, textErr := s.checkTexts(ctx, pending, o.Sources)
	for _, v := range s.Variants {
		if !pending[v] || v.device == "" {
			continue
		}
		bytes, accelerator, err := v.check(s.backendOf(v))
		all.add(v.Name, err)
		need, accelerators = max(need, bytes), accelerators || accelerator
	}
	all.add("", textErr)
	return need + text, accelerators, all.err()
}

// setPlaces sets the backends over which runs are spread, and the arithmetic of each variant.
// Runs must not depend on the place.
func (s *Sweep) setPlaces() error {
	if len(s.places) == 0 {
		driver, device, err := backend.Find("")
		if err != nil {
			return err
		}
		s.places = []string{nameOf(driver.Name, device)}
	}
	var arithmetics []string
	for _, name := range s.places {
		arithmetic, err := arithmeticOf(name)
		if err != nil {
			return err
		}
		arithmetics = append(arithmetics, arithmetic)
	}
	for i, name := range s.places[1:] {
		if a := arithmetics[i+1]; a != arithmetics[0] || a == name || a == s.places[0] {
			return fmt.Errorf("--backend %s: only numbered devices of one backend, such as cuda:0,cuda:1, can share runs; list backends to compare in the sweep file: backends = [\"…\"]", strings.Join(s.places, ","))
		}
	}
	var all problems
	for _, v := range s.Variants {
		var err error
		v.device, err = arithmeticOf(s.backendOf(v))
		all.add(v.Name, err)
	}
	return all.err()
}

// arithmeticOf returns the part of a backend's name that determines the results: a device of
// emu is a model with its own arithmetic, but all devices of cuda compute the same.
func arithmeticOf(name string) (string, error) {
	driver, device, err := backend.Find(name)
	if err != nil {
		return "", err
	}
	spec, err := driver.Spec(device)
	if err != nil {
		return "", err
	}
	if spec.HostMemory {
		return nameOf(driver.Name, device), nil
	}
	return driver.Name, nil
}

// backendOf returns the backend of a variant; for one without its own that of the first place.
func (s *Sweep) backendOf(v *Variant) string { return cmp.Or(v.Backend, s.places[0]) }

// nameOf returns a backend as --backend takes it.
func nameOf(driver, device string) string {
	if device == "" {
		return driver
	}
	return driver + ":" + device
}

// checkRun returns an error if the run folder of a row holds a run of another configuration or
// backend.
func (s *Sweep) checkRun(r *Row, before manifest) error {
	dir := filepath.Join(s.Dir, r.Folder)
	there, err := run.ConfigOf(dir)
	if err != nil {
		return err
	}
	want := r.Variant.configOf(r.Seed)
	differing, err := config.Differences(config.Keys(), there, want)
	if err != nil {
		return err
	}
	if there.Train.Steps != want.Train.Steps { // a longer run has another schedule
		differing = append(differing, fmt.Sprintf("train.steps is %d in the run, %d given", there.Train.Steps, want.Train.Steps))
	}
	for _, e := range before.Variants {
		if d := r.Variant.device; e.Folder == r.Variant.Folder && d != "" && e.Backend != d {
			differing = append(differing, fmt.Sprintf("the backend is %s in the run, %s given", e.Backend, r.Variant.device))
		}
	}
	if len(differing) > 0 {
		return fmt.Errorf("the folder holds a run with another configuration: %s; name another folder with --out, restore the sweep file, or remove the run", strings.Join(differing, ", "))
	}
	return nil
}

// check returns an error if the backend cannot run the variant, and the memory of one of its
// runs on the host, in bytes, without its text.
func (v *Variant) check(name string) (need int64, accelerator bool, err error) {
	driver, device, err := backend.Find(name)
	if err != nil {
		return 0, false, err
	}
	if err := v.Config.CheckRanks(); err != nil {
		return 0, false, err
	}
	if err := driver.Available(device); err != nil {
		return 0, false, err
	}
	spec, err := driver.Spec(device)
	if err != nil {
		return 0, false, err
	}
	_, _, m, err := train.LargestJob(v.Config, spec)
	if err != nil {
		return 0, !spec.HostMemory, err
	}
	if !spec.HostMemory {
		return m.Snapshot, true, hostmem.Check("the host copy of a checkpoint", m.Snapshot, "use a smaller model, or a machine with more host memory")
	}
	need = m.Total()*int64(v.Config.Train.Ranks) + m.Snapshot
	return need, false, hostmem.Check("a run", need, hostmem.SmallerRun)
}

// checkTexts opens every text of the variants with pending runs once, and compares it with
// those that the existing runs of these variants read. It returns the largest memory that a
// text takes, in bytes.
func (s *Sweep) checkTexts(ctx context.Context, pending map[*Variant]bool, sources fs.FS) (memory int64, err error) {
	var all problems
	checked := map[string]bool{}
	for _, v := range s.Variants {
		key := textOf(v)
		if !pending[v] || checked[key] {
			continue
		}
		checked[key] = true
		corpus, _, err := run.OpenCorpus(ctx, v.Config, sources)
		if err != nil {
			all.add(v.Name, err)
			continue
		}
		memory = max(memory, corpus.InMemory())
		if corpus.Info.ValTokens == 0 {
			all.add(v.Name, errors.New("the text has no validation part: raise data.val_bytes, since a sweep compares validation losses"))
		}
		for _, r := range s.rows {
			if textOf(r.Variant) != key {
				continue
			}
			dir := filepath.Join(s.Dir, r.Folder)
			if err := run.CheckCorpus(dir, corpus.Info); err != nil && !errors.Is(err, fs.ErrNotExist) {
				all.add("", fmt.Errorf("%s: %w", dir, err))
			}
		}
		if err := corpus.Close(); err != nil {
			return 0, err
		}
	}
	return memory, all.err()
}

// textOf returns the settings that determine the text of a variant, as a key.
func textOf(v *Variant) string {
	return fmt.Sprintf("%q %d %d", v.Config.Data.Paths, v.Config.Data.ValBytes, v.Config.Model.Vocab)
}

// fitting returns how many runs fit into the free memory of the host, at least 1.
func fitting(need int64) int {
	free, _, ok := hostmem.Free()
	if !ok || need <= 0 {
		return maxRuns
	}
	return int(min(max(1, free/need), maxRuns))
}
