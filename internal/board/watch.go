package board

import (
	"math"
	"slices"
	"sync"
	"time"

	"octet/internal/runs"
)

// The least time between two readings of the files, and that between two searches for new
// runs.
const (
	readEvery = 400 * time.Millisecond
	findEvery = 5 * time.Second
)

// watch holds the runs of a folder. Its methods may be called by several goroutines.
type watch struct {
	dir string

	mu      sync.Mutex
	read    time.Time // when the runs were last read
	found   time.Time // when the folder was last searched
	failure error     // of the last search
	list    []*runs.Run
	version int // counts the changes
}

// Row is a run in the list. Values without a number are null.
type Row struct {
	Name     string   `json:"name"`
	Recipe   string   `json:"recipe"`
	Seed     string   `json:"seed"`
	Device   string   `json:"device"`
	Step     int      `json:"step"`
	Steps    int      `json:"steps"`
	Loss     *float64 `json:"loss"`
	ValLoss  *float64 `json:"val_loss"`
	Tokens   *float64 `json:"tokens_per_s"`
	Warnings int      `json:"warnings"`
	Problems int      `json:"problems"`
	State    string   `json:"state"`
	Written  string   `json:"written"` // local time of the last step; empty: none
}

// rows updates the runs and returns their rows with the version of their content.
func (w *watch) rows() (rows []Row, version int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.update(time.Now())
	rows = []Row{}
	for _, r := range w.list {
		rows = append(rows, rowOf(r))
	}
	return rows, w.version, w.failure
}

// update reads new lines after readEvery, and finds new runs after findEvery.
func (w *watch) update(now time.Time) {
	if now.Sub(w.found) >= findEvery {
		w.find()
		w.found = time.Now()
	}
	if now.Sub(w.read) < readEvery {
		return
	}
	for _, r := range w.list {
		if r.Update() {
			w.version++
		}
	}
	w.read = time.Now()
}

// find opens new runs and forgets those that are gone.
func (w *watch) find() {
	var found []string
	if found, w.failure = runs.Find(w.dir); w.failure != nil {
		return
	}
	known := map[string]*runs.Run{}
	for _, r := range w.list {
		known[r.Dir] = r
	}
	var list []*runs.Run
	for _, dir := range found {
		r := known[dir]
		if r == nil {
			var err error
			if r, err = runs.Open(dir); err != nil {
				continue // it was removed after the search
			}
			r.NameBelow(w.dir)
			w.version++
		}
		list = append(list, r)
	}
	if len(list) != len(w.list) {
		w.version++
	}
	w.list = list
}

// with calls do with the runs of some names, in the order of the list, while no other
// goroutine reads them. Without names it takes all runs.
func (w *watch) with(names []string, do func([]*runs.Run)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.update(time.Now())
	var chosen []*runs.Run
	for _, r := range w.list {
		if len(names) == 0 || slices.Contains(names, r.Name) {
			chosen = append(chosen, r)
		}
	}
	do(chosen)
}

func rowOf(r *runs.Run) Row {
	last := func(s *runs.Series) *float64 {
		if v, ok := s.Last(); ok && !math.IsNaN(v) && !math.IsInf(v, 0) {
			return &v
		}
		return nil
	}
	row := Row{
		Name: r.Name, Recipe: r.Config["recipe"], Seed: r.Seed(), Device: r.Device(), Step: r.Step(), Steps: r.Steps,
		Loss: last(r.Metrics["loss"]), ValLoss: last(r.Metrics["val_loss"]), Tokens: last(r.Timing["tokens_per_s"]),
		Warnings: len(r.Alarms), Problems: len(r.Problems), State: r.State(),
	}
	if !r.Written.IsZero() {
		row.Written = r.Written.Format(time.DateTime)
	}
	return row
}
