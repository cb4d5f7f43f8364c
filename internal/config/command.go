package config

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/BurntSushi/toml"
)

// Flags are the aliases of the most used keys. The tags are kong's, for the
// commands that embed the struct.
type Flags struct {
	Recipe Once     `name:"recipe" placeholder:"NAME|FILE" help:"Number formats and scaling: a name that octet recipes lists, or a recipe file NAME.toml (key recipe); default: fp8-smooth."`
	Model  Once     `name:"model" placeholder:"PRESET" help:"Size of the model: tiny, small, 124m, 1b, llama2-7b, llama3-8b, llama3-70b or llama3-405b (key model.preset); default: tiny."`
	Data   []string `name:"data" placeholder:"PATH" sep:"none" help:"A text, a token shard (.bin), or a folder of these, to train on; may be repeated (key data.paths)."`
	Steps  Once     `name:"steps" placeholder:"N" help:"Length of the run in optimizer steps (key train.steps); default: 1800."`
	Ranks  Once     `name:"ranks" placeholder:"N" help:"Ranks: threads of this process on emu, a GPU or Gaudi each (key train.ranks); default: 1."`
	Seed   Once     `name:"seed" placeholder:"N" help:"Seed of all random numbers (key seed); default: 1."`
}

// Once is the value of a flag that may be given only once.
type Once struct {
	Value string
	Given bool
}

// UnmarshalText implements encoding.TextUnmarshaler, by which kong sets the flag.
func (o *Once) UnmarshalText(text []byte) error {
	if o.Given {
		return fmt.Errorf("given twice, as %s and as %s; keep one of them", o.Value, text)
	}
	o.Value, o.Given = string(text), true
	return nil
}

// assignment matches a key=value argument. A path may contain "=", but not right after a
// bare dotted name.
var assignment = regexp.MustCompile(`^([A-Za-z0-9_.-]+)=`)

// SplitArgs separates the arguments [config.toml] [key=value …] of a command.
func SplitArgs(args []string) (file string, assignments []string, err error) {
	for _, a := range args {
		switch {
		case assignment.MatchString(a):
			assignments = append(assignments, a)
		case isKey(a):
			return "", nil, fmt.Errorf("%s is a configuration key and needs a value: %s=VALUE", a, a)
		case file != "":
			return "", nil, fmt.Errorf("%q is neither key=value nor the configuration file, which is %s: give one file", a, file)
		case a == "":
			return "", nil, errors.New("an argument is empty; give a configuration file or key=value")
		default:
			file = a
		}
	}
	return file, assignments, nil
}

// commandLine collects assignments and flags into a source.
func commandLine(a Args) (*source, error) {
	s := &source{}
	for _, text := range a.Assignments {
		m := assignment.FindStringSubmatch(text)
		if m == nil {
			return nil, fmt.Errorf("%q is not of the form key=value, such as train.steps=1000", text)
		}
		if err := s.add(m[1], text[len(m[0]):], text); err != nil {
			return nil, err
		}
	}
	for _, f := range []struct {
		flag, key string
		value     Once
	}{
		{"--recipe", "recipe", a.Flags.Recipe},
		{"--model", "model.preset", a.Flags.Model},
		{"--steps", "train.steps", a.Flags.Steps},
		{"--ranks", "train.ranks", a.Flags.Ranks},
		{"--seed", "seed", a.Flags.Seed},
	} {
		if !f.value.Given {
			continue
		}
		if err := s.add(f.key, f.value.Value, f.flag+" "+f.value.Value); err != nil {
			return nil, err
		}
	}
	if len(a.Flags.Data) == 0 {
		return s, nil
	}
	var paths []any
	for _, p := range a.Flags.Data {
		paths = append(paths, p)
	}
	return s, s.addValue("data.paths", paths, "--data "+a.Flags.Data[0])
}

// add parses the text of a value for the key's type and adds it.
func (s *source) add(name, text, place string) error {
	k, ok := findKey(name)
	if !ok {
		return fmt.Errorf("%s: %w", place, unknownKey(name))
	}
	value, err := parseValue(k, text)
	if err != nil {
		return fmt.Errorf("%s: %w", place, err)
	}
	return s.addValue(k.name, value, place)
}

func (s *source) addValue(name string, value any, place string) error {
	if first, twice := s.find(name); twice {
		return fmt.Errorf("%s is given twice, by %s and by %s; keep one of them", name, first.place, place)
	}
	k, _ := findKey(name)
	s.settings = append(s.settings, setting{k, value, place})
	return nil
}

// parseValue parses a value in TOML. A string needs no quotes, and a list of one string no
// brackets. Text that is not TOML stays a string, which assign then refuses.
func parseValue(k key, text string) (any, error) {
	if !utf8.ValidString(text) {
		return nil, fmt.Errorf("%q is not UTF-8, as a configuration must be; rename the file", text)
	}
	doc := "v = " + text
	quoted := strings.HasPrefix(text, `"`) || strings.HasPrefix(text, `'`)
	switch texts := reflect.TypeFor[[]string](); {
	case k.typ.Kind() == reflect.String && !quoted:
		return text, nil
	case k.typ == texts && !quoted && !strings.HasPrefix(text, "["):
		return []any{text}, nil
	case k.typ == texts && quoted:
		doc = "v = [" + text + "]"
	}
	if err := CheckDepth(doc); err != nil {
		return nil, err
	}
	var tree map[string]any
	meta, err := toml.Decode(doc, &tree)
	if err != nil || len(tree) != 1 {
		return text, nil
	}
	for _, path := range meta.Keys() {
		within := path[1:].String()
		if names := k.tableKeys(); names != nil && within != "" && !slices.Contains(names, within) {
			return nil, unknownKey(k.name + "." + within)
		}
	}
	return tree["v"], nil
}
