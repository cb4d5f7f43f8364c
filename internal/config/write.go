package config

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/BurntSushi/toml"

	"octet/nn"
	"octet/train"
)

// Marshal returns a config as TOML: every key in the order of train.Config, with a short
// comment. It omits fields that are not set (see train.Config.FillFromRecipe). The text
// holds neither the folder of a run nor what it resumes. Marshal returns an error for a
// string that is not UTF-8, which Validate refuses too, and for a text longer than Load
// reads.
func Marshal(c train.Config) ([]byte, error) {
	c = withRecipeFiles(c)
	var b strings.Builder
	for _, s := range sections {
		if s.name != "" {
			b.WriteByte('\n')
			writeLine(&b, "["+s.name+"]", s.doc)
		}
		for _, k := range s.keys {
			if err := writeKey(&b, k, k.field(&c)); err != nil {
				return nil, err
			}
		}
	}
	if b.Len() > maxFile {
		return nil, fmt.Errorf("the configuration takes %d KiB, and the limit is %d KiB; name folders in data.paths, not the files in them", b.Len()>>10, maxFile>>10)
	}
	return []byte(b.String()), nil
}

func writeKey(b *strings.Builder, k key, value reflect.Value) error {
	if k.omit && value.IsZero() {
		return nil
	}
	if k.tableKeys() != nil {
		return writeTables(b, k, value)
	}
	text, err := format(k.name, value)
	if err != nil {
		return err
	}
	doc := strings.Replace(k.doc, "ACTIVATIONS", strings.Trim(fmt.Sprint(nn.Activations()), "[]"), 1)
	writeLine(b, k.name[strings.LastIndexByte(k.name, '.')+1:]+" = "+text, doc)
	return nil
}

func writeTables(b *strings.Builder, k key, tables reflect.Value) error {
	for i := range tables.Len() {
		b.WriteByte('\n')
		writeLine(b, "[["+k.name+"]]", k.doc)
		table := tables.Index(i)
		for j := range table.NumField() {
			if err := writeKey(b, newKey(k.name+".", table.Type().Field(j)), table.Field(j)); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeLine writes a line and its comment.
func writeLine(b *strings.Builder, line, doc string) {
	if doc == "" {
		fmt.Fprintln(b, line)
		return
	}
	fmt.Fprintf(b, "%-26s # %s\n", line, doc)
}

// format returns a value in TOML. Floats have the fewest digits that read back as the same
// bits.
func format(name string, value reflect.Value) (string, error) {
	if value.Kind() == reflect.Slice && value.IsNil() {
		return "[]", nil
	}
	text, err := toml.Marshal(map[string]any{"v": value.Interface()})
	if err == nil {
		// The library writes invalid UTF-8 in a form that it does not read.
		_, err = toml.Decode(string(text), new(map[string]any))
	}
	if err != nil {
		return "", fmt.Errorf("%s = %v cannot be written to a configuration file: %w", name, value, err)
	}
	return strings.TrimSpace(strings.TrimPrefix(string(text), "v = ")), nil
}
