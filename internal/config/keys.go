package config

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"octet/internal/spelling"
	"octet/train"
)

// key is a setting: a field of train.Config and its dotted name.
type key struct {
	name  string // "model.layers"
	typ   reflect.Type
	index []int // of the field, for reflect's FieldByIndex
	doc   string
	omit  bool // omitted from a file if empty
}

func (k key) field(c *train.Config) reflect.Value {
	return reflect.ValueOf(c).Elem().FieldByIndex(k.index)
}

// section is a table of a configuration file: the keys of one struct. The first, without a
// name, holds the keys before all tables.
type section struct {
	name string
	doc  string
	keys []key
}

// sections are the keys of train.Config, in its order.
var sections = func() []section {
	config := reflect.TypeFor[train.Config]()
	list := []section{{}}
	for i := range config.NumField() {
		f := config.Field(i)
		if f.Tag.Get("toml") == "-" {
			continue
		}
		if f.Type.Kind() != reflect.Struct {
			list[0].keys = append(list[0].keys, newKey("", f, i))
			continue
		}
		s := section{name: f.Tag.Get("toml"), doc: f.Tag.Get("doc")}
		for j := range f.Type.NumField() {
			s.keys = append(s.keys, newKey(s.name+".", f.Type.Field(j), i, j))
		}
		list = append(list, s)
	}
	return list
}()

// allKeys are the keys of all sections, in their order.
var allKeys = func() (list []key) {
	for _, s := range sections {
		list = append(list, s.keys...)
	}
	return list
}()

func newKey(prefix string, f reflect.StructField, index ...int) key {
	name, options, _ := strings.Cut(f.Tag.Get("toml"), ",")
	return key{name: prefix + name, typ: f.Type, index: index, doc: f.Tag.Get("doc"), omit: options == "omitempty"}
}

// formerNames maps the names that keys had in earlier versions to their names. Files, run
// folders and checkpoints may hold them.
var formerNames = map[string]string{
	"precision.smooth_factors": "precision.smooth_scaling",
}

// findKey returns the key of a name or former name.
func findKey(name string) (key, bool) {
	if present, ok := formerNames[name]; ok {
		name = present
	}
	for _, k := range allKeys {
		if k.name == name {
			return k, true
		}
	}
	return key{}, false
}

// KeyOf returns the key that a mistaken flag such as --lr stands for.
func KeyOf(flag string) (key string, ok bool) {
	name := strings.ReplaceAll(strings.TrimLeft(flag, "-"), "-", "_")
	for _, k := range allKeys {
		if k.name == name || strings.HasSuffix(k.name, "."+name) {
			return k.name, true
		}
	}
	return "", false
}

func isKey(name string) bool {
	_, ok := findKey(name)
	return ok
}

// tableKeys returns the names within a table, for a key whose value is a list of tables; nil
// for any other key.
func (k key) tableKeys() []string {
	if k.typ.Kind() != reflect.Slice || k.typ.Elem().Kind() != reflect.Struct {
		return nil
	}
	names := make([]string, k.typ.Elem().NumField())
	for i := range names {
		names[i] = newKey("", k.typ.Elem().Field(i)).name
	}
	return names
}

// splitTableKey splits a name such as precision.rows.format into a key that holds a list of
// tables, and a name within a table, which need not exist.
func splitTableKey(name string) (list key, within string, ok bool) {
	for _, k := range allKeys {
		if within, ok = strings.CutPrefix(name, k.name+"."); ok && k.tableKeys() != nil {
			return k, within, true
		}
	}
	return key{}, "", false
}

// flagsNotKeys are flags that users might take for configuration keys.
var flagsNotKeys = []string{"backend", "threads", "out", "resume", "json", "dry-run", "profile"}

// unknownKey returns the error for a name that is not a key.
func unknownKey(name string) error {
	if flag := strings.ReplaceAll(name, "_", "-"); slices.Contains(flagsNotKeys, flag) {
		return fmt.Errorf("%s is a flag and not a configuration key; use --%s", name, flag)
	}
	var known, tables []string
	for _, s := range sections {
		if s.name == name {
			return fmt.Errorf("%s is a section; give one of its keys, such as %s", name, s.keys[0].name)
		}
		for _, k := range s.keys {
			known = append(known, k.name)
		}
		if s.name != "" {
			tables = append(tables, s.name)
		}
	}
	known = append(known, tables...)
	all := "; octet train --dry-run prints every key"
	if list, within, ok := splitTableKey(name); ok {
		names := list.tableKeys()
		if slices.Contains(names, within) {
			return fmt.Errorf("%s belongs to a list of tables; give the whole list, such as %s=[{%s=…}]", name, list.name, within)
		}
		known, all = nil, fmt.Sprintf("; the keys of its tables are %s", strings.Join(names, ", "))
		for _, k := range names {
			known = append(known, list.name+"."+k)
		}
	}
	return fmt.Errorf("unknown key %s%s", name, cmp.Or(spelling.DidYouMean(name, known), all))
}
