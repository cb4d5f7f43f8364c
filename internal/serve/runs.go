package serve

import (
	"context"
	"encoding/binary"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"slices"

	"octet/checkpoint"
	"octet/internal/runs"
)

// pathRequest names a run folder, or a checkpoint or model folder.
type pathRequest struct {
	Path string `json:"path"`
}

// runReply describes a run. Its buffers are the steps and the values of each series, as float64;
// a value that is absent or not finite is NaN.
type runReply struct {
	Path        string            `json:"path"`
	Config      map[string]string `json:"config"`
	State       string            `json:"state"` // done, failed, stopped or not done
	Step        int               `json:"step"`
	Steps       int               `json:"steps"` // of the configuration
	Backend     string            `json:"backend"`
	Version     string            `json:"version"`
	Series      []seriesName      `json:"series"`
	Alarms      []alarm           `json:"alarms"`
	Problems    []string          `json:"problems"`
	Checkpoints []checkpointEntry `json:"checkpoints"`
}

// seriesName names a series: metrics, timing, casts or channels, and the field in it. Of casts and
// channels the name comes first.
type seriesName struct {
	Table string `json:"table"`
	Name  string `json:"name,omitempty"`
	Field string `json:"field"`
}

type alarm struct {
	Step int    `json:"step"`
	Text string `json:"text"`
}

type checkpointEntry struct {
	Path   string `json:"path"`
	Step   int    `json:"step"`
	Damage string `json:"damage,omitempty"`
}

// missingError is the error of a folder without the files that make it a run, a checkpoint or a model.
type missingError struct{ error }

func (e missingError) Is(target error) bool { return target == fs.ErrNotExist }

func openRun(_ context.Context, _ *server, q *request) (reply, error) {
	var p pathRequest
	if err := q.fields(&p); err != nil {
		return reply{}, valueError{err}
	}
	r, err := runs.Open(p.Path)
	if err != nil {
		return reply{}, missingError{err}
	}
	a := runReply{
		Path: r.Dir, Config: r.Config, State: r.State(), Step: r.Step(), Steps: r.Steps, Backend: r.Device(), Version: r.Version,
		Series: []seriesName{}, Alarms: []alarm{}, Problems: append([]string{}, r.Problems...), Checkpoints: []checkpointEntry{},
	}
	var buffers [][]byte
	add := func(n seriesName, steps, values []float64) {
		a.Series = append(a.Series, n)
		buffers = append(buffers, appendDoubles(steps), appendDoubles(values))
	}
	for _, table := range []struct {
		name   string
		series map[string]*runs.Series
	}{{"metrics", r.Metrics}, {"timing", r.Timing}} {
		for _, field := range slices.Sorted(maps.Keys(table.series)) {
			s := table.series[field]
			add(seriesName{Table: table.name, Field: field}, s.Steps, s.Values)
		}
	}
	for _, table := range []struct {
		name string
		m    *runs.Measurements
	}{{"casts", &r.Casts}, {"channels", &r.Channels}} {
		for _, name := range table.m.Names() {
			for _, field := range slices.Sorted(maps.Keys(table.m.Values[name])) {
				add(seriesName{table.name, name, field}, table.m.Steps, table.m.Field(name, field))
			}
		}
	}
	for _, x := range r.Alarms {
		a.Alarms = append(a.Alarms, alarm{x.Step, x.Message})
	}
	list, err := checkpoint.List(filepath.Join(p.Path, checkpoint.Dir))
	if err != nil {
		return reply{}, err
	}
	for _, e := range list {
		entry := checkpointEntry{Path: e.Path, Step: e.Step}
		if e.Damage != nil {
			entry.Damage = e.Damage.Error()
		}
		a.Checkpoints = append(a.Checkpoints, entry)
	}
	return reply{a, buffers}, nil
}

func appendDoubles(values []float64) []byte {
	raw := make([]byte, 0, 8*len(values))
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint64(raw, math.Float64bits(v))
	}
	return raw
}
