package inspect

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"octet/internal/writers"
)

// MetricsDifference says where the lines of two metrics.jsonl files differ.
type MetricsDifference struct {
	Same   int    `json:"same"`            // equal lines, from the first
	First  *Field `json:"first,omitempty"` // that differs in the line after those; nil: a file ends there
	StepsA int    `json:"steps_a"`         // number of lines
	StepsB int    `json:"steps_b"`
}

// Equal reports whether nothing differs.
func (d MetricsDifference) Equal() bool { return d.First == nil && d.StepsA == d.StepsB }

// Field is a value that differs: the JSON of both sides, empty if it is absent.
type Field struct {
	Step int    `json:"step,omitempty"` // of a metrics line
	Name string `json:"name"`           // "fp8.layers.0.mlp.input.e4m3.amax"
	A    string `json:"a"`
	B    string `json:"b"`
}

func diffMetrics(a, b string) (d MetricsDifference, err error) {
	linesA, err := openLines(a)
	if err != nil {
		return d, err
	}
	defer linesA.file.Close()
	linesB, err := openLines(b)
	if err != nil {
		return d, err
	}
	defer linesB.file.Close()
	for {
		moreA, moreB := linesA.next(), linesB.next()
		if err := errors.Join(linesA.err(), linesB.err()); err != nil {
			return d, err
		}
		if moreA {
			d.StepsA++
		}
		if moreB {
			d.StepsB++
		}
		if !moreA && !moreB {
			return d, nil
		}
		if d.First != nil || !moreA || !moreB { // count the rest
			continue
		}
		if bytes.Equal(linesA.line(), linesB.line()) {
			d.Same++
			continue
		}
		if d.First, err = diffLine(linesA, linesB); err != nil {
			return d, err
		}
		if d.First == nil { // the same values, formatted differently
			d.Same++
		}
	}
}

func diffLine(a, b *lines) (*Field, error) {
	fieldsA, err := a.fields()
	if err != nil {
		return nil, err
	}
	fieldsB, err := b.fields()
	if err != nil {
		return nil, err
	}
	found := firstDifferent(fieldsA, fieldsB)
	if found != nil {
		var line struct{ Step int }
		_ = json.Unmarshal(a.line(), &line) // the line is valid JSON; without a step, Step is 0
		found.Step = line.Step
	}
	return found, nil
}

// firstDifferent returns the first field that differs, in the order of A, then of the
// fields that only B has; nil if there is none.
func firstDifferent(a, b []field) *Field {
	inA, inB := byName(a), byName(b)
	for _, f := range slices.Concat(a, b) {
		if x, y := inA[f.name], inB[f.name]; x != y {
			return &Field{Name: f.name, A: x, B: y}
		}
	}
	return nil
}

// byName maps names to values; of several values with one name it takes the first.
func byName(list []field) map[string]string {
	values := make(map[string]string, len(list))
	for _, f := range slices.Backward(list) {
		values[f.name] = f.value
	}
	return values
}

// diffState compares two state.json files, except for the version of Octet, the backend and
// the config.
func diffState(a, b []byte) (*Field, error) {
	var sides [2][]field
	for i, text := range [][]byte{a, b} {
		all, err := flatten(text)
		if err != nil {
			return nil, fmt.Errorf("state.json: %w", err)
		}
		sides[i] = slices.DeleteFunc(all, func(f field) bool {
			return f.name == "octet" || f.name == "backend" || strings.HasPrefix(f.name, "config.")
		})
	}
	return firstDifferent(sides[0], sides[1]), nil
}

// lines reads the complete lines of a file.
type lines struct {
	file *os.File
	scan *bufio.Scanner
	n    int
}

func openLines(path string) (*lines, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	l := &lines{file: f, scan: bufio.NewScanner(f)}
	l.scan.Buffer(make([]byte, 0, 64<<10), writers.MaxLine)
	l.scan.Split(func(data []byte, atEOF bool) (int, []byte, error) {
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			return i + 1, data[:i], nil
		}
		if atEOF {
			return len(data), nil, nil // an incomplete line: torn, or being written
		}
		return 0, nil, nil
	})
	return l, nil
}

func (l *lines) next() bool {
	l.n++
	return l.scan.Scan()
}

func (l *lines) line() []byte { return l.scan.Bytes() }

func (l *lines) err() error {
	if err := l.scan.Err(); err != nil {
		return fmt.Errorf("%s, line %d: %w", l.file.Name(), l.n, err)
	}
	return nil
}

func (l *lines) fields() ([]field, error) {
	all, err := flatten(l.line())
	if err != nil {
		return nil, fmt.Errorf("%s, line %d is damaged: %w", l.file.Name(), l.n, err)
	}
	return all, nil
}

// field is a value within JSON; its name joins the keys with dots.
type field struct{ name, value string }

// flatten lists the values of a JSON object and its nested objects in their order. A list
// is one value.
func flatten(text []byte) (all []field, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if err := flattenObject(d, "", 0, &all); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is text after the object")
	}
	return all, nil
}

// maxDepth bounds the nesting of objects; files of Octet have three levels.
const maxDepth = 16

func flattenObject(d *json.Decoder, prefix string, depth int, all *[]field) error {
	if depth == maxDepth {
		return fmt.Errorf("more than %d nested objects", maxDepth)
	}
	token, err := d.Token()
	if err != nil {
		return err
	}
	if token != json.Delim('{') {
		return errors.New("expected an object")
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		name := prefix + fmt.Sprint(key)
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return err
		}
		if len(value) > 0 && value[0] == '{' {
			inner := json.NewDecoder(bytes.NewReader(value))
			if err := flattenObject(inner, name+".", depth+1, all); err != nil {
				return err
			}
			continue
		}
		var compact bytes.Buffer
		if err := json.Compact(&compact, value); err != nil {
			return err
		}
		*all = append(*all, field{name, compact.String()})
	}
	_, err = d.Token()
	return err
}
