package config

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"octet/train"
)

// source holds the settings of the file or of the command line. A nil source has none.
type source struct {
	settings []setting // no key twice
}

// setting is the value of a key and the place that sets it. The value has a type of the TOML
// library: int64, float64, bool, string, []any, map[string]any or []map[string]any.
type setting struct {
	key   key
	value any
	place string
}

func (s *source) find(name string) (setting, bool) {
	if s == nil {
		return setting{}, false
	}
	i := slices.IndexFunc(s.settings, func(x setting) bool { return x.key.name == name })
	if i < 0 {
		return setting{}, false
	}
	return s.settings[i], true
}

// text returns the string that the source gives to a key, or otherwise.
func (s *source) text(name, otherwise string) string {
	x, _ := s.find(name)
	if text, ok := x.value.(string); ok {
		return text
	}
	return otherwise
}

// place returns where the source gives a key.
func (s *source) place(name string) string {
	x, _ := s.find(name)
	return x.place
}

// each calls f with every setting, its value converted to the field's type.
func (s *source) each(f func(key, reflect.Value)) error {
	if s == nil {
		return nil
	}
	var c train.Config // supplies a zero field of each type
	for _, x := range s.settings {
		field := x.key.field(&c)
		if err := assign(field, x.value); err != nil {
			if x.key.tableKeys() != nil {
				err = fmt.Errorf("%w; in a file each table begins with [[%s]]", err, x.key.name)
			}
			return fmt.Errorf("%s: %s must be %w", x.place, x.key.name, err)
		}
		f(x.key, field)
	}
	return nil
}

// assign sets a zero field from a TOML value. The error completes "KEY must be ".
func assign(field reflect.Value, value any) error {
	switch field.Kind() {
	case reflect.Pointer:
		field.Set(reflect.New(field.Type().Elem()))
		return assign(field.Elem(), value)
	case reflect.String:
		if s, ok := value.(string); ok {
			field.SetString(s)
			return nil
		}
		return fmt.Errorf("a string in quotes, not %s", show(value))
	case reflect.Bool:
		if b, ok := value.(bool); ok {
			field.SetBool(b)
			return nil
		}
		return fmt.Errorf("true or false, not %s", show(value))
	case reflect.Int, reflect.Int64:
		n, ok := value.(int64)
		if x, isFloat := value.(float64); isFloat { // a million may be written as 1e6
			const exact = 1 << 53 // a larger float64 may be a rounded integer
			n, ok = int64(x), x == math.Trunc(x) && math.Abs(x) <= exact
		}
		if ok && !field.OverflowInt(n) {
			field.SetInt(n)
			return nil
		}
		return fmt.Errorf("a whole number, not %s", show(value))
	case reflect.Float64:
		switch x := value.(type) {
		case float64:
			field.SetFloat(x)
			return nil
		case int64:
			field.SetFloat(float64(x))
			return nil
		}
		return fmt.Errorf("a number, not %s", show(value))
	case reflect.Array:
		list, ok := value.([]any)
		if !ok || len(list) != field.Len() {
			return fmt.Errorf("a list of %d numbers, not %s", field.Len(), show(value))
		}
		for i, x := range list {
			if err := assign(field.Index(i), x); err != nil {
				return fmt.Errorf("a list: entry %d must be %w", i+1, err)
			}
		}
		return nil
	case reflect.Slice:
		return assignSlice(field, value)
	case reflect.Struct:
		return assignTable(field, value)
	}
	return fmt.Errorf("a %s, a type that cannot be configured", field.Type())
}

// show returns a value for an error: strings in quotes, others as fmt prints them.
func show(value any) string {
	if s, ok := value.(string); ok {
		return strconv.Quote(s)
	}
	return fmt.Sprint(value)
}

func assignSlice(field reflect.Value, value any) error {
	var list []any
	switch x := value.(type) {
	case []any:
		list = x
	case []map[string]any:
		for _, table := range x {
			list = append(list, table)
		}
	default:
		if field.Type().Elem().Kind() == reflect.Struct {
			return errors.New("a list of tables")
		}
		return fmt.Errorf("a list, not %s", show(value))
	}
	if len(list) == 0 {
		return nil // an empty list is nil
	}
	field.Set(reflect.MakeSlice(field.Type(), len(list), len(list)))
	for i, x := range list {
		if err := assign(field.Index(i), x); err != nil {
			return fmt.Errorf("a list: entry %d must be %w", i+1, err)
		}
	}
	return nil
}

// assignTable sets the fields of a struct by their toml tags. Unknown names are already
// refused, with their line.
func assignTable(field reflect.Value, value any) error {
	table, ok := value.(map[string]any)
	if !ok {
		return fmt.Errorf("a table, not %s", show(value))
	}
	for i := range field.NumField() {
		name, _, _ := strings.Cut(field.Type().Field(i).Tag.Get("toml"), ",")
		if x, ok := table[name]; ok {
			if err := assign(field.Field(i), x); err != nil {
				return fmt.Errorf("a table: its %s must be %w", name, err)
			}
		}
	}
	return nil
}
