package config

import (
	"fmt"
	"reflect"
	"strings"
	"unicode"

	"octet/train"
)

// affectsResults reports whether a run's weights or records depend on the key. They do not
// depend on the length of the run, which --resume may change; on paths, since data.json
// identifies the corpus; or on when checkpoints are written.
func (k key) affectsResults() bool {
	switch k.name {
	case "train.steps", "data.paths", "model.init":
		return false
	}
	return !strings.HasPrefix(k.name, "checkpoint.")
}

// Values returns the keys of a resolved config that affect the results of a run, each with
// its value in TOML. A checkpoint stores them for Changes.
func Values(c train.Config) (map[string]string, error) { return values(c, key.affectsResults) }

// AllValues returns all keys of a resolved config, each with its value in TOML.
func AllValues(c train.Config) (map[string]string, error) {
	return values(c, func(key) bool { return true })
}

func values(c train.Config, has func(key) bool) (map[string]string, error) {
	values := map[string]string{}
	for _, k := range allKeys {
		if !has(k) {
			continue
		}
		text, err := inline(k.name, k.field(&c))
		if err != nil {
			return nil, err
		}
		values[k.name] = text
	}
	return values, nil
}

// inline writes a value, also a list of tables, on one line.
func inline(name string, value reflect.Value) (string, error) {
	if value.Kind() == reflect.Pointer && value.IsNil() {
		return "", nil
	}
	if value.Kind() != reflect.Slice || value.Type().Elem().Kind() != reflect.Struct {
		return format(name, value)
	}
	var tables []string
	for i := range value.Len() {
		var fields []string
		for j := range value.Index(i).NumField() {
			field := value.Index(i).Field(j)
			if field.IsZero() {
				continue
			}
			k := newKey("", value.Type().Elem().Field(j))
			text, err := format(k.name, field)
			if err != nil {
				return "", err
			}
			fields = append(fields, k.name+" = "+text)
		}
		tables = append(tables, "{"+strings.Join(fields, ", ")+"}")
	}
	return "[" + strings.Join(tables, ", ") + "]", nil
}

// maxShown is the largest total length, in bytes, of two values that are shown.
const maxShown = 60

// Changes lists the keys whose values in a config differ from those that Values returned
// before, as "optimizer.lr 0.003 -> 0.001", or the name alone if the values are long. It
// omits keys that only one of the two versions of Octet knows.
func Changes(before map[string]string, now train.Config) (list []string, err error) {
	values, err := Values(now)
	if err != nil {
		return nil, err
	}
	for _, k := range allKeys {
		old, known := before[k.name]
		for former, present := range formerNames {
			if !known && present == k.name {
				old, known = before[former]
			}
		}
		if !known || !k.affectsResults() || old == values[k.name] {
			continue
		}
		text := fmt.Sprintf("%s %s -> %s", k.name, old, values[k.name])
		// Values never returns unprintable text: such text was put into the checkpoint.
		if len(old)+len(values[k.name]) > maxShown || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
			text = k.name
		}
		list = append(list, text)
	}
	return list, nil
}

// Differences lists those of the given keys whose values differ between the config of a run
// and the command line, as "optimizer.lr is 0.002 in the run, 0.001 given", or the name alone
// if the values are long. It ignores the length of the run.
func Differences(keys []string, run, given train.Config) (list []string, err error) {
	for _, name := range keys {
		k, ok := findKey(name)
		if !ok || name == "train.steps" {
			continue
		}
		a, err := inline(name, k.field(&run))
		if err != nil {
			return nil, err
		}
		b, err := inline(name, k.field(&given))
		switch {
		case err != nil:
			return nil, err
		case a == b:
		case len(a)+len(b) > maxShown:
			list = append(list, name)
		default:
			list = append(list, fmt.Sprintf("%s is %s in the run, %s given", name, a, b))
		}
	}
	return list, nil
}

// Keys lists all keys.
func Keys() (list []string) {
	for _, k := range allKeys {
		list = append(list, k.name)
	}
	return list
}
