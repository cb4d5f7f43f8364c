package config

import (
	"fmt"
	"reflect"
	"strings"
	"unicode"

	"octet/train"
)

// computes tells the keys on which the numbers of a run depend, its weights or its
// records, from the others: how long it is, which --resume may change; where things lie,
// data.json vouching for the corpus; and when checkpoints are written.
func (k key) computes() bool {
	switch k.name {
	case "train.steps", "data.paths", "model.init":
		return false
	}
	return !strings.HasPrefix(k.name, "checkpoint.")
}

// Values are the keys of a resolved config on which the numbers of a run depend, each with
// its value in TOML: what a checkpoint remembers for Changes.
func Values(c train.Config) (map[string]string, error) {
	values := map[string]string{}
	for _, s := range sections {
		for _, k := range s.keys {
			if !k.computes() {
				continue
			}
			text, err := inline(k.name, k.field(&c))
			if err != nil {
				return nil, err
			}
			values[k.name] = text
		}
	}
	return values, nil
}

// inline is a value on one line, a list of tables too.
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

// longest is how many bytes of two values are worth reading in one line.
const longest = 60

// Changes lists what a config has other values for than Values gave, as
// "optimizer.lr 0.003 -> 0.001", or the name alone where the values are long. A key
// that one of both octets did not know is none of them.
func Changes(before map[string]string, now train.Config) (list []string, err error) {
	values, err := Values(now)
	if err != nil {
		return nil, err
	}
	for _, s := range sections {
		for _, k := range s.keys {
			old, known := before[k.name]
			if !known || !k.computes() || old == values[k.name] {
				continue
			}
			text := fmt.Sprintf("%s %s -> %s", k.name, old, values[k.name])
			// What is not printable is of somebody else's making: see Values.
			if len(old)+len(values[k.name]) > longest || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
				text = k.name
			}
			list = append(list, text)
		}
	}
	return list, nil
}

// Differences lists the given keys whose values in two configs differ, as "optimizer.lr
// is 0.002 there, 0.001 here", or the name alone where the values are long. The length of
// a run may differ.
func Differences(given []string, there, here train.Config) (list []string, err error) {
	for _, name := range given {
		k, ok := findKey(name)
		if !ok || name == "train.steps" {
			continue
		}
		a, err := inline(name, k.field(&there))
		if err != nil {
			return nil, err
		}
		b, err := inline(name, k.field(&here))
		switch {
		case err != nil:
			return nil, err
		case a == b:
		case len(a)+len(b) > longest:
			list = append(list, name)
		default:
			list = append(list, fmt.Sprintf("%s is %s there, %s here", name, a, b))
		}
	}
	return list, nil
}
