package runs

import (
	"fmt"
	"math"
	"slices"
)

// Series holds values by step, in increasing order of steps. A value that is not finite is
// NaN.
type Series struct{ Steps, Values []float64 }

// Last returns the last value; ok is false if there is none.
func (s *Series) Last() (v float64, ok bool) {
	if s == nil || len(s.Values) == 0 {
		return 0, false
	}
	return s.Values[len(s.Values)-1], true
}

// All returns the values; none of a nil series.
func (s *Series) All() []float64 {
	if s == nil {
		return nil
	}
	return s.Values
}

// cutFrom forgets the values of a step and of those after it: a run that resumes or rewinds
// writes them again.
func (s *Series) cutFrom(step float64) {
	n := len(s.Steps)
	for n > 0 && s.Steps[n-1] >= step {
		n--
	}
	s.Steps, s.Values = s.Steps[:n], s.Values[:n]
}

func (s *Series) add(step, value float64) {
	s.Steps, s.Values = append(s.Steps, step), append(s.Values, value)
}

// addAll adds the values of a step to the series of their fields, after it removed those of
// the step and of later ones from all series.
func addAll(all map[string]*Series, step float64, values map[string]float64) error {
	for _, s := range all {
		s.cutFrom(step)
	}
	for name, v := range values {
		s := all[name]
		if s == nil {
			if len(all) >= maxFields {
				return fmt.Errorf("the lines have more than %d fields", maxFields)
			}
			s = &Series{}
			all[name] = s
		}
		s.add(step, v)
	}
	return nil
}

// Measurements hold, for each name and field, a value for each element of Steps, in
// increasing order of steps; NaN where the step has none or one that is not finite.
type Measurements struct {
	Steps  []float64
	Values map[string]map[string][]float32

	lists int // of all names and fields
}

// Names returns the names in the order of layers and fields: numbers count as numbers.
func (m *Measurements) Names() (names []string) {
	for name := range m.Values {
		names = append(names, name)
	}
	slices.SortFunc(names, compareNames)
	return names
}

// compareNames compares names so that layers.2 comes before layers.10.
func compareNames(a, b string) int {
	for a != "" && b != "" {
		x, restA := leadingNumber(a)
		y, restB := leadingNumber(b)
		if len(restA) < len(a) && len(restB) < len(b) && x != y {
			return x - y
		}
		if a[0] != b[0] {
			return int(a[0]) - int(b[0])
		}
		a, b = a[1:], b[1:]
	}
	return len(a) - len(b)
}

// leadingNumber returns the number that text begins with, and what follows it.
func leadingNumber(text string) (n int, rest string) {
	for rest = text; rest != "" && '0' <= rest[0] && rest[0] <= '9' && n < 1e6; rest = rest[1:] {
		n = 10*n + int(rest[0]-'0')
	}
	return n, rest
}

func (m *Measurements) cutFrom(step float64) {
	n := len(m.Steps)
	for n > 0 && m.Steps[n-1] >= step {
		n--
	}
	if n == len(m.Steps) {
		return
	}
	m.Steps = m.Steps[:n]
	for _, fields := range m.Values {
		for field, values := range fields {
			fields[field] = values[:min(n, len(values))]
		}
	}
}

// add adds the measurements of a step, by name and field.
func (m *Measurements) add(step float64, values map[string]map[string]*float64) error {
	if len(values) == 0 {
		return nil
	}
	if m.Values == nil {
		m.Values = map[string]map[string][]float32{}
	}
	at := len(m.Steps)
	if m.lists*(at+1) > maxValues {
		return fmt.Errorf("the run has more than %d measurements", maxValues)
	}
	m.Steps = append(m.Steps, step)
	for name, fields := range values {
		all := m.Values[name]
		if all == nil {
			if len(m.Values) >= maxNames {
				return fmt.Errorf("the run has more than %d names of casts", maxNames)
			}
			all = map[string][]float32{}
			m.Values[name] = all
		}
		for field, v := range fields {
			list, known := all[field]
			if !known && len(all) >= maxFields {
				return fmt.Errorf("%.80q has more than %d fields", name, maxFields)
			}
			if !known {
				if (m.lists+1)*len(m.Steps) > maxValues {
					return fmt.Errorf("the run has more than %d measurements", maxValues)
				}
				m.lists++
			}
			for len(list) < at {
				list = append(list, float32(math.NaN()))
			}
			all[field] = append(list, float32(number(v)))
		}
	}
	return nil
}

// Field returns the values of a field of a name, one for each element of Steps.
func (m *Measurements) Field(name, field string) []float64 {
	values := make([]float64, len(m.Steps))
	list := m.Values[name][field]
	for i := range values {
		values[i] = math.NaN()
		if i < len(list) {
			values[i] = float64(list[i])
		}
	}
	return values
}

// number returns a number of JSON; NaN for null.
func number(v *float64) float64 {
	if v == nil {
		return math.NaN()
	}
	return *v
}
