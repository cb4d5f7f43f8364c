package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"octet/checkpoint"
	"octet/fp8"
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

func openRun(_ context.Context, _ *server, q *request) (reply, error) {
	var p pathRequest
	if err := q.fields(&p); err != nil {
		return reply{}, valueError{err}
	}
	r, err := runs.Open(p.Path)
	if err != nil && !runs.IsRun(p.Path) {
		return reply{}, fmt.Errorf("%w (%w)", err, fs.ErrNotExist)
	}
	if err != nil {
		return reply{}, err
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
		bits := math.Float64bits(v)
		for i := range 8 {
			raw = append(raw, byte(bits>>(8*i)))
		}
	}
	return raw
}

// tensors are the open checkpoint or model folder of a server.
type tensors struct {
	path             string
	model, optimizer *checkpoint.Tensors // optimizer is nil in a model folder
	config           checkpoint.Config
	state            json.RawMessage
	close            func() error
}

// open opens a folder, unless it is the one that is open. It verifies a checkpoint.
func (t *tensors) open(path string) error {
	if t.path == path && path != "" {
		return nil
	}
	if err := t.closed(); err != nil {
		return err
	}
	if _, err := os.Stat(path); err != nil {
		return err
	}
	if _, ok := checkpoint.StepOf(path); ok {
		c, err := checkpoint.Open(path)
		if err != nil {
			return err
		}
		*t = tensors{path, c.Model, c.Optimizer, c.Config, c.State, c.Close}
		return nil
	}
	config, model, err := checkpoint.OpenModel(path)
	if err != nil {
		return err
	}
	*t = tensors{path: path, model: model, config: config, close: model.Close}
	return nil
}

func (t *tensors) closed() error {
	if t.path == "" {
		return nil
	}
	shut := t.close
	*t = tensors{}
	return shut()
}

// tensorReply describes a tensor. Names begin with model/ or optimizer/, as in shards.
type tensorReply struct {
	Name  string `json:"name"`
	DType string `json:"dtype"`
	Shape []int  `json:"shape"`
}

type checkpointReply struct {
	Config  checkpoint.Config `json:"config"`
	State   json.RawMessage   `json:"state,omitempty"`
	Tensors []tensorReply     `json:"tensors"`
}

func listTensors(_ context.Context, s *server, q *request) (reply, error) {
	var p pathRequest
	if err := q.fields(&p); err != nil {
		return reply{}, valueError{err}
	}
	if err := s.tensors.open(p.Path); err != nil {
		return reply{}, err
	}
	a := checkpointReply{Config: s.tensors.config, State: s.tensors.state, Tensors: []tensorReply{}}
	for prefix, list := range s.tensors.all() {
		for _, t := range list.List() {
			a.Tensors = append(a.Tensors, tensorReply{prefix + t.Name, t.DType.String(), append([]int{}, t.Shape...)})
		}
	}
	return reply{fields: a}, nil
}

// all yields the sets of tensors with the prefix of their names.
func (t *tensors) all() func(yield func(string, *checkpoint.Tensors) bool) {
	return func(yield func(string, *checkpoint.Tensors) bool) {
		if yield("model/", t.model) && t.optimizer != nil {
			yield("optimizer/", t.optimizer)
		}
	}
}

// tensorRequest asks for a tensor of a checkpoint. The answer has one buffer: the tensor as it is
// stored, codes of four bits one in a byte, or with Values float32, which is each FP8 weight times
// its scale_inv.
type tensorRequest struct {
	Path   string `json:"path"`
	Name   string `json:"name"`
	Values bool   `json:"values"`
}

func readTensor(_ context.Context, s *server, q *request) (reply, error) {
	var r tensorRequest
	if err := q.fields(&r); err != nil {
		return reply{}, valueError{err}
	}
	if err := s.tensors.open(r.Path); err != nil {
		return reply{}, err
	}
	for prefix, list := range s.tensors.all() {
		name, ok := strings.CutPrefix(r.Name, prefix)
		t, found := list.Lookup(name)
		if !ok || !found {
			continue
		}
		if r.Values {
			values, err := list.Weight(name)
			if err != nil {
				return reply{}, err
			}
			return reply{tensorReply{r.Name, fp8.F32.String(), append([]int{}, t.Shape...)}, [][]byte{fp8.AppendFloats(nil, values...)}}, nil
		}
		from, err := list.Reader(name)
		if err != nil {
			return reply{}, err
		}
		raw, err := io.ReadAll(from)
		if err != nil {
			return reply{}, err
		}
		if t.DType.Size() == 0 {
			codes := make([]byte, t.Elems())
			fp8.Unpack4(codes, raw)
			raw = codes
		}
		return reply{tensorReply{r.Name, t.DType.String(), append([]int{}, t.Shape...)}, [][]byte{raw}}, nil
	}
	return reply{}, valueError{fmt.Errorf("%s has no tensor %q", r.Path, r.Name)}
}
