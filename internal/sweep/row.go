package sweep

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"octet/checkpoint"
	"octet/internal/disk"
	"octet/internal/writers"
)

// Row is a run of a sweep: a row of its results.
type Row struct {
	Variant *Variant
	Seed    int64
	Folder  string // of the run, relative to that of the sweep
	State   State
	Step    int // the last one with metrics
	// Loss is that of the last step, ValLoss the last validation loss, in nats per token; NaN
	// if there is none yet, or if it is not finite.
	Loss, ValLoss float64
	Error         string // of a failed run

	running bool // its process runs
}

// State is the state of a run.
type State string

// The states of a run.
const (
	Pending State = "pending" // it has not started, or not ended
	Done    State = "done"    // its metrics and its last checkpoint are those of the last step
	Failed  State = "failed"
	running State = "running" // in results.csv: Pending, and its process runs
)

// read sets the state of a row from its run folder and the known failures.
func (s *Sweep) read(r *Row) {
	dir := filepath.Join(s.Dir, r.Folder)
	r.Step, r.Loss, r.ValLoss = lastMetrics(filepath.Join(dir, writers.MetricsFile))
	r.State, r.Error = Pending, ""
	steps := r.Variant.Config.Train.Steps
	if r.Step >= steps && hasCheckpoint(dir, steps) {
		r.State = Done
	}
	if text, failed := s.failures[r.Folder]; failed {
		r.State, r.Error = Failed, text
	}
}

// hasCheckpoint reports whether a run has an undamaged checkpoint of a step.
func hasCheckpoint(dir string, step int) bool {
	entries, _ := checkpoint.List(filepath.Join(dir, checkpoint.Dir))
	for _, e := range entries {
		if e.Step == step && e.Damage == nil {
			return true
		}
	}
	return false
}

// lastMetrics returns step and losses of the last complete line of metrics.jsonl. It reads
// only the end of the file, since the whole may have gigabytes. Step 0 says that there is no
// intact line.
func lastMetrics(name string) (step int, loss, valLoss float64) {
	nan := math.NaN()
	f, err := os.Open(name)
	if err != nil {
		return 0, nan, nan
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return 0, nan, nan
	}
	var line []byte
	for size := int64(64 << 10); ; size *= 4 {
		size = min(size, info.Size())
		tail := make([]byte, size)
		if _, err := f.ReadAt(tail, info.Size()-size); err != nil && !errors.Is(err, io.EOF) {
			return 0, nan, nan
		}
		tail = tail[:bytes.LastIndexByte(tail, '\n')+1]
		if len(tail) > 0 {
			begin := bytes.LastIndexByte(tail[:len(tail)-1], '\n') + 1
			line = tail[begin:]
			if begin > 0 {
				break
			}
		}
		if size == info.Size() || size > writers.MaxLine {
			break
		}
	}
	var m struct {
		Step    int      `json:"step"`
		Loss    *float64 `json:"loss"`
		ValLoss *float64 `json:"val_loss"`
	}
	if json.Unmarshal(line, &m) != nil || m.Step < 1 {
		return 0, nan, nan
	}
	return m.Step, orNaN(m.Loss), orNaN(m.ValLoss)
}

func orNaN(v *float64) float64 {
	if v == nil {
		return math.NaN()
	}
	return *v
}

// failuresFile holds the errors of runs that failed, by their folders.
const failuresFile = "failures.json"

func (s *Sweep) readFailures() error {
	name := filepath.Join(s.Dir, failuresFile)
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &s.failures); err != nil {
		return fmt.Errorf("%s is damaged: remove it to try the failed runs again", name)
	}
	if s.failures == nil { // the file holds null
		s.failures = map[string]string{}
	}
	return nil
}

// writeFailures writes failures.json, or removes it if no run failed; the caller holds mu, or is alone.
func (s *Sweep) writeFailures() error {
	name := filepath.Join(s.Dir, failuresFile)
	if len(s.failures) == 0 {
		return disk.RemoveAll(name)
	}
	text, err := json.MarshalIndent(s.failures, "", "  ")
	if err != nil {
		return err
	}
	return disk.WriteAtomic(name, append(text, '\n'))
}
