package runs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"octet/internal/config"
	"octet/internal/writers"
)

// Run is what a run folder says so far.
type Run struct {
	Dir  string
	Name string // for users: the folder, relative to the one that Find searched

	Config  map[string]string // "optimizer.lr": "0.003"
	Steps   int               // of the configuration; 0: unknown
	Backend string            // of the last start; empty if run.log does not say
	Version string            // of Octet, at the last start

	Metrics  map[string]*Series // of metrics.jsonl, by its field: loss, val_loss, grad_norm, …
	Timing   map[string]*Series // of timing.jsonl: step_s, tokens_per_s, mfu, memory, …
	Casts    Measurements       // of casts
	Channels Measurements       // of the MLPs' largest channels
	Alarms   []Alarm            // warnings and errors of run.log
	Problems []string           // what the folder holds and this value does not, a sentence each

	config               fs.FileInfo // of the file that was read; nil: none
	metrics, timing, log tail
	problems             map[string]int // by file
}

// Alarm is a warning or an error of run.log.
type Alarm struct {
	Time    string
	Step    int // 0: none
	Message string
}

// Limits of what a folder can make this package keep.
const (
	maxConfig   = 1 << 20 // bytes
	maxNames    = 20_000  // of casts and channels
	maxValues   = 1 << 27 // of casts, and of channels, with the gaps: 4 bytes each
	maxAlarms   = 1000
	maxProblems = 3 // of one file
)

// Open reads a run folder. It returns an error only if dir has no configuration.
func Open(dir string) (*Run, error) {
	if _, err := os.Lstat(filepath.Join(dir, config.RunFile)); err != nil {
		return nil, fmt.Errorf("%s is not a run folder: it has no %s", dir, config.RunFile)
	}
	r := newRun(dir)
	r.Update()
	return r, nil
}

func newRun(dir string) *Run {
	return &Run{
		Dir: dir, Name: nameOf(filepath.Base(filepath.Clean(dir))), problems: map[string]int{},
		Metrics: map[string]*Series{}, Timing: map[string]*Series{},
		metrics: tail{path: filepath.Join(dir, writers.MetricsFile)},
		timing:  tail{path: filepath.Join(dir, writers.TimingFile)},
		log:     tail{path: filepath.Join(dir, writers.RunLogFile)},
	}
}

// nameOf returns a path as a name: JSON and HTML hold UTF-8 only.
func nameOf(path string) string { return strings.ToValidUTF8(filepath.ToSlash(path), "\ufffd") }

// NameBelow names the run by the path from a folder to its own.
func (r *Run) NameBelow(dir string) {
	if below, err := filepath.Rel(dir, r.Dir); err == nil && below != "." {
		r.Name = nameOf(below)
	}
}

// Update reads what was written since Open or the last Update, and reports whether there was
// anything.
func (r *Run) Update() (changed bool) {
	update := func(t *tail, parse func(text []byte) error) (again bool) {
		before, name := t.offset, filepath.Base(t.path)
		again, err := t.read(func(text []byte, whole bool) {
			if !whole {
				r.problem(name, fmt.Errorf("the line before byte %d is longer than %s", t.offset, writers.Quantity(writers.MaxLine, "B")))
			} else if err := parse(text); err != nil {
				r.problem(name, fmt.Errorf("the line before byte %d is damaged: %w", t.offset, err))
			}
		})
		if err != nil {
			r.problem(name, err)
		}
		changed = changed || again || t.offset != before
		return again
	}
	if read, err := r.readConfig(); err != nil {
		r.problem(config.RunFile, err)
	} else {
		changed = read
	}
	update(&r.metrics, r.metricsLine)
	update(&r.timing, r.timingLine)
	alarms := len(r.Alarms)
	if update(&r.log, r.logLine) {
		r.Alarms = r.Alarms[alarms:]
	}
	return changed
}

// problem records a problem of a file.
func (r *Run) problem(file string, err error) {
	r.problems[file]++
	switch n := r.problems[file]; {
	case n <= maxProblems:
		r.Problems = append(r.Problems, fmt.Sprintf("%s: %v", file, err))
	case n == maxProblems+1:
		r.Problems = append(r.Problems, file+": more of these")
	}
}

// Step returns the last step with metrics; 0 if there is none.
func (r *Run) Step() int {
	loss := r.Metrics["loss"]
	if loss == nil || len(loss.Steps) == 0 {
		return 0
	}
	return int(loss.Steps[len(loss.Steps)-1])
}

// Done reports whether the run has reached the last step of its configuration.
func (r *Run) Done() bool { return r.Steps > 0 && r.Step() >= r.Steps }
