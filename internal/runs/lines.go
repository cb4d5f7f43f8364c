package runs

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
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
	l, err := parse(text)
	if err != nil {
		return err
	}
	r.Casts.cutFrom(l.step)
	r.Channels.cutFrom(l.step)
	if raw := l.fields["update"]; raw != nil {
		var update map[string]json.RawMessage
		if err := json.Unmarshal(raw, &update); err != nil {
			return err
		}
		l.add("update.", update)
	}
	errs := []error{addAll(r.Metrics, l.step, l.numbers)}
	for field, m := range map[string]*Measurements{"fp8": &r.Casts, "swiglu": &r.Channels} {
		var values map[string]map[string]*float64
		if raw := l.fields[field]; raw != nil {
			if err := json.Unmarshal(raw, &values); err != nil {
				return err
			}
		}
		errs = append(errs, m.add(l.step, values))
	}
	return errors.Join(errs...)
}

// timingLine reads a line of timing.jsonl.
func (r *Run) timingLine(text []byte) error {
	l, err := parse(text)
	if err != nil {
		return err
	}
	return addAll(r.Timing, l.step, l.numbers)
}

// maxFields bounds the fields of a line, of all lines together, and those of a cast.
const maxFields = 64

// line is a line of metrics.jsonl or timing.jsonl.
type line struct {
	step    float64
	fields  map[string]json.RawMessage
	numbers map[string]float64 // the fields that are numbers, without the step, and those of update; null is NaN
}

func parse(text []byte) (l line, err error) {
	if err := json.Unmarshal(text, &l.fields); err != nil {
		return l, err
	}
	if len(l.fields) > maxFields {
		return l, fmt.Errorf("it has %d fields, more than %d", len(l.fields), maxFields)
	}
	l.numbers = make(map[string]float64, len(l.fields))
	l.add("", l.fields)
	step, ok := l.numbers["step"]
	if !ok || !(step >= 1 && step <= lastStep) || step != float64(int64(step)) {
		return l, errors.New("it has no step")
	}
	l.step = step
	delete(l.numbers, "step")
	return l, nil
}

// add adds the fields that are numbers, with a prefix to their names.
func (l *line) add(prefix string, fields map[string]json.RawMessage) {
	for name, raw := range fields {
		if string(raw) == "null" {
			l.numbers[prefix+name] = math.NaN()
		} else if v, err := strconv.ParseFloat(string(raw), 64); err == nil { // "Inf" is no JSON
			l.numbers[prefix+name] = v
		}
	}
}

// logLine reads a line of run.log.
func (r *Run) logLine(text []byte) error {
	var line struct {
		Time, Level, Msg string
		Octet, Backend   string
		Step             int
		Error, Reason    string
	}
	if err := json.Unmarshal(text, &line); err != nil {
		return err
	}
	switch line.Msg {
	case "start":
		r.Version, r.Backend, r.ended = line.Octet, line.Backend, ""
	case "stopped":
		r.ended = "failed"
	case "interrupted":
		r.ended = "stopped"
	}
	if line.Level != "WARN" && line.Level != "ERROR" {
		return nil
	}
	if len(r.Alarms) == maxAlarms {
		return fmt.Errorf("it has more than %d warnings", maxAlarms)
	}
	message := line.Msg
	if why := cmp.Or(line.Error, line.Reason); why != "" {
		message += ": " + why
	}
	r.Alarms = append(r.Alarms, Alarm{line.Time, line.Step, message})
	return nil
}

// readConfig reads the configuration as text by key if the file is not the one that was read
// last: a longer run has another one. The run may be of a version whose keys this one does not
// know.
func (r *Run) readConfig() (read bool, err error) {
	name := filepath.Join(r.Dir, config.RunFile)
	info, err := os.Lstat(name)
	if err != nil || unchanged(r.config, info) {
		return false, nil // the folder may have been removed
	}
	r.config = info
	text, err := ReadText(name, maxConfig)
	if err != nil {
		return true, err
	}
	var all map[string]any
	if _, err := toml.Decode(text, &all); err != nil {
		return true, err
	}
	r.Config = map[string]string{}
	flatten(r.Config, "", all)
	r.Steps, _ = strconv.Atoi(r.Config["train.steps"]) // 0 if it is missing or no number
	return true, nil
}

// ReadText reads a TOML file of a folder that may be hostile: a regular file of at most limit
// bytes, with the nesting that config.CheckDepth allows. Errors begin without its name.
func ReadText(name string, limit int64) (string, error) {
	info, err := os.Lstat(name)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() { // opening a pipe would block
		return "", errors.New("it is not a regular file")
	}
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return "", err
	}
	if int64(len(text)) > limit {
		return "", fmt.Errorf("it is longer than %d bytes", limit)
	}
	return string(text), config.CheckDepth(string(text))
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
