package sweep

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"octet/checkpoint"
	"octet/internal/config"
	"octet/internal/disk"
	"octet/run"
)

// Options are the options of Open. File and Dir are needed.
type Options struct {
	File string // the sweep file
	Dir  string // the sweep's folder: new, empty, or that of an earlier Open with this file
	// Backends are the values of --backend over which the runs are spread, such as cuda:0 and
	// cuda:1; empty: the best that is present, or those of the file.
	Backends []string
	Jobs     int  // runs at a time; 0: as many as processors, devices and memory allow
	Retry    bool // forget the failures of earlier processes
	// Sources is the text for a configuration without data.paths on a machine without a Go
	// installation. It may be nil.
	Sources fs.FS
}

// Sweep is an open sweep, whose folder this process has locked. Methods may be called from
// any goroutine.
type Sweep struct {
	Dir      string
	Variants []*Variant
	Jobs     int // runs at a time
	Threads  int // of each run
	// Strays are folders below Dir/runs of no variant: an earlier version of the file had
	// others.
	Strays []string

	places []string // values of --backend
	unlock func() error

	mu       sync.Mutex
	rows     []*Row
	failures map[string]string // errors by folder of the run
}

// Open reads the sweep file and checks every run before the first one starts: its
// configuration, its run folder if there is one, backend, text and memory. The error lists
// all problems, and Open then changes nothing. Runs that are done are not checked again.
func Open(ctx context.Context, o Options) (s *Sweep, err error) {
	f, err := readFile(o.File)
	if err != nil {
		return nil, err
	}
	if o.Jobs < 0 {
		return nil, fmt.Errorf("--jobs %d is out of range: use 1 or more, or 0 for as many as fit", o.Jobs)
	}
	s = &Sweep{Dir: o.Dir, places: o.Backends, failures: map[string]string{}}
	if s.Variants, err = f.variants(); err != nil {
		return nil, fmt.Errorf("%s:\n%w", o.File, err)
	}
	if len(f.Backends) > 0 && len(o.Backends) > 0 {
		return nil, fmt.Errorf("%s lists backends, and --backend is given: keep one of them", o.File)
	}
	if err := checkFolder(o.Dir); err != nil {
		return nil, err
	}
	if _, err := os.Stat(o.Dir); err == nil {
		if s.unlock, err = checkpoint.Lock(o.Dir); err != nil {
			return nil, err
		}
	}
	if err := s.prepare(ctx, o); err != nil {
		if s.unlock != nil {
			err = errors.Join(err, s.unlock())
		}
		return nil, err
	}
	return s, nil
}

// Backends names the backends of the runs.
func (s *Sweep) Backends() string {
	var names []string
	for _, v := range s.Variants {
		if v.Backend == "" {
			return strings.Join(s.places, ", ")
		}
		if !slices.Contains(names, v.Backend) {
			names = append(names, v.Backend)
		}
	}
	return strings.Join(names, ", ")
}

// Close unlocks the sweep's folder.
func (s *Sweep) Close() error { return s.unlock() }

// prepare reads the state of the runs, checks those that are not done, and writes the files
// of the sweep.
func (s *Sweep) prepare(ctx context.Context, o Options) error {
	if err := s.readFailures(); err != nil {
		return err
	}
	if o.Retry {
		clear(s.failures)
	}
	for seeds, i := true, 0; seeds; i++ { // all variants of a seed first: pairs are complete early
		seeds = false
		for _, v := range s.Variants {
			if i < len(v.Seeds) {
				seeds = true
				r := &Row{Variant: v, Seed: v.Seeds[i], Folder: runFolder(v.Folder, v.Seeds[i])}
				s.read(r)
				s.rows = append(s.rows, r)
			}
		}
	}
	need, accelerators, err := s.check(ctx, o)
	if err != nil {
		return fmt.Errorf("%s:\n%w", o.File, err)
	}
	s.setJobs(o.Jobs, need, accelerators)
	if s.unlock == nil {
		if err := disk.MakeDirs(s.Dir); err != nil {
			return fmt.Errorf("the sweep's folder cannot be made: %w; name another one", err)
		}
		if s.unlock, err = checkpoint.Lock(s.Dir); err != nil {
			return err
		}
	}
	s.findStrays()
	return s.write()
}

// checkFolder returns an error for a folder that holds something other than a sweep.
func checkFolder(dir string) error {
	if run.Exists(dir) {
		return fmt.Errorf("%s is a run folder: name a new or an empty folder for the sweep", dir)
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the sweep's folder cannot be read: %w; name another one", err)
	}
	if _, err := os.Stat(filepath.Join(dir, manifestFile)); err == nil {
		return nil
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") && e.Name() != "lost+found" {
			return fmt.Errorf("%s holds %.80q but no %s, so it is no sweep: name a new or an empty folder", dir, e.Name(), manifestFile)
		}
	}
	return nil
}

// setJobs sets how many runs train at a time, and their threads. need is the memory of the
// largest run in bytes; accelerators says that a run needs a device of its own.
func (s *Sweep) setJobs(jobs int, need int64, accelerators bool) {
	processors := runtime.GOMAXPROCS(0)
	pending := 0
	for _, r := range s.rows {
		if r.State == Pending {
			pending++
		}
	}
	if jobs == 0 {
		jobs = processors
		if accelerators {
			jobs = len(s.places)
		}
		jobs = min(jobs, fitting(need))
	}
	s.Jobs = max(1, min(jobs, pending))
	s.Threads = max(1, processors/s.Jobs)
}

// findStrays lists the folders of runs that belong to no variant.
func (s *Sweep) findStrays() {
	known := map[string]bool{}
	for _, v := range s.Variants {
		known[v.Folder] = true
	}
	entries, _ := os.ReadDir(filepath.Join(s.Dir, "runs"))
	for _, e := range entries {
		if e.IsDir() && !known[e.Name()] && !strings.HasPrefix(e.Name(), ".") {
			s.Strays = append(s.Strays, filepath.Join("runs", e.Name()))
		}
	}
}

// write writes the manifest, the configurations and the results.
func (s *Sweep) write() error {
	if err := writeManifest(s.Dir, s.Variants); err != nil {
		return err
	}
	for _, v := range s.Variants {
		dir := filepath.Join(s.Dir, "configs", v.Folder)
		if err := disk.MakeDirs(dir); err != nil {
			return err
		}
		text, err := config.Marshal(v.Config)
		if err != nil {
			return err
		}
		files := config.RecipeFiles(v.Config)
		files[config.RunFile] = string(text)
		for name, text := range files {
			if err := disk.WriteAtomic(filepath.Join(dir, name), []byte(text)); err != nil {
				return err
			}
		}
	}
	if err := s.writeFailures(); err != nil {
		return err
	}
	return s.writeCSV()
}
