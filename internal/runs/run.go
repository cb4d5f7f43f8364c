package runs

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"octet/internal/config"
	"octet/internal/writers"
)

// Run holds the content of a run folder.
type Run struct {
	Dir  string
	Name string // for users: the folder, relative to the one that Find searched

	Config  map[string]string // "optimizer.lr": "0.003"
	Steps   int               // of the configuration; 0: unknown
	Backend string            // of the last start; empty if run.log does not say
	Version string            // of Octet, at the last start
	Written time.Time         // when metrics.jsonl was last written; zero: never

	Metrics  map[string]*Series // of metrics.jsonl, by its field: loss, val_loss, update.largest, …
	Timing   map[string]*Series // of timing.jsonl: step_s, tokens_per_s, mfu, memory, …
	Casts    Measurements       // of casts
	Channels Measurements       // of the MLPs' largest channels
	Alarms   []Alarm            // warnings and errors of run.log
	Problems []string           // of the folder's files, a sentence each: Run lacks the damaged parts

	config               fs.FileInfo // of the file that was read; nil: none
	metrics, timing, log tail
	problems             map[string]int // by file
	ended                string         // how run.log says that the last start ended; empty: it does not
}

// Alarm is a warning or an error of run.log.
type Alarm struct {
	Time    string
	Step    int // 0: none
	Message string
}

// Limits of the memory that a folder takes.
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

// Update reads the lines written since Open or the last Update, and reports whether anything
// changed.
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
	if r.metrics.file != nil {
		r.Written = r.metrics.file.ModTime()
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

// State returns done, failed, stopped for an interrupted run, or "not done": run.log does not
// tell a run that trains from one that was killed.
func (r *Run) State() string {
	if r.Done() {
		return "done"
	}
	return cmp.Or(r.ended, "not done")
}

// Done reports whether the run has reached the last step of its configuration.
func (r *Run) Done() bool { return r.Steps > 0 && r.Step() >= r.Steps }
