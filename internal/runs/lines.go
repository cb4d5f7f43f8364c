package runs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/BurntSushi/toml"

	"octet/internal/config"
)

// lastStep is the largest step that a line may have: float64 holds it exactly.
const lastStep = 1 << 53

// metricsLine reads a line of metrics.jsonl.
func (r *Run) metricsLine(text []byte) error {
	var line struct {
		Casts    map[string]map[string]*float64 `json:"fp8"`
		Channels map[string]map[string]*float64 `json:"swiglu"`
	}
	step, values, err := numbers(text)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &line); err != nil {
		return err
	}
	for _, s := range r.Metrics {
		s.cutFrom(step)
	}
	r.Casts.cutFrom(step)
	r.Channels.cutFrom(step)
	addAll(r.Metrics, step, values)
	return errors.Join(r.Casts.add(step, line.Casts), r.Channels.add(step, line.Channels))
}

// timingLine reads a line of timing.jsonl.
func (r *Run) timingLine(text []byte) error {
	step, values, err := numbers(text)
	if err != nil {
		return err
	}
	for _, s := range r.Timing {
		s.cutFrom(step)
	}
	addAll(r.Timing, step, values)
	return nil
}

// maxFields bounds the fields of a line, and those of a cast.
const maxFields = 64

// numbers returns the step of a line and its other numbers by field; null is NaN.
func numbers(text []byte) (step float64, values map[string]float64, err error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return 0, nil, err
	}
	if len(fields) > maxFields {
		return 0, nil, fmt.Errorf("it has %d fields, more than %d", len(fields), maxFields)
	}
	values = make(map[string]float64, len(fields))
	for name, raw := range fields {
		var v *float64
		if json.Unmarshal(raw, &v) == nil {
			values[name] = number(v)
		}
	}
	step, ok := values["step"]
	if !ok || !(step >= 1 && step <= lastStep) || step != float64(int64(step)) {
		return 0, nil, errors.New("it has no step")
	}
	delete(values, "step")
	return step, values, nil
}

// logLine reads a line of run.log.
func (r *Run) logLine(text []byte) error {
	var line struct {
		Time, Level, Msg string
		Octet, Backend   string
		Step             int
	}
	if err := json.Unmarshal(text, &line); err != nil {
		return err
	}
	if line.Msg == "start" {
		r.Version, r.Backend = line.Octet, line.Backend
	}
	if line.Level != "WARN" && line.Level != "ERROR" {
		return nil
	}
	if len(r.Alarms) == maxAlarms {
		return fmt.Errorf("it has more than %d warnings", maxAlarms)
	}
	r.Alarms = append(r.Alarms, Alarm{line.Time, line.Step, line.Msg})
	return nil
}

// readConfig reads the configuration as text by key. The run may be of a version whose keys
// this one does not know.
func (r *Run) readConfig() error {
	name := filepath.Join(r.Dir, config.RunFile)
	info, err := os.Lstat(name)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("it is not a regular file")
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err != nil {
		return err
	}
	if len(text) > maxConfig {
		return fmt.Errorf("it is longer than %d bytes", maxConfig)
	}
	var all map[string]any
	if _, err := toml.Decode(string(text), &all); err != nil {
		return err
	}
	r.Config = map[string]string{}
	flatten(r.Config, "", all)
	r.Steps, _ = strconv.Atoi(r.Config["train.steps"]) // 0 if it is missing or no number
	return nil
}

// flatten writes the values of nested tables with the names of TOML's dotted keys.
func flatten(to map[string]string, prefix string, table map[string]any) {
	for key, v := range table {
		if inner, ok := v.(map[string]any); ok {
			flatten(to, prefix+key+".", inner)
		} else {
			to[prefix+key] = fmt.Sprint(v)
		}
	}
}
