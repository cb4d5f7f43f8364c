package sweep

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"octet/internal/config"
	"octet/internal/spelling"
)

// file is a sweep file. Relative paths in it begin in its own folder.
type file struct {
	path string

	Config   string     `toml:"config"`
	Recipes  []string   `toml:"recipes"`
	Seeds    []int64    `toml:"seeds"`
	Backends []string   `toml:"backends"`
	Data     [][]string `toml:"data"`
	Set      []string   `toml:"set"` // key=value, for all runs
	Variants []settings `toml:"variants"`
	// Conditions are crossed with recipes and variants, like backends.
	Conditions []settings `toml:"conditions"`
	Grid       any        `toml:"grid"`

	grid []gridKey // in the order of the file
}

// settings are a named combination of settings of the form key=value.
type settings struct {
	Name string   `toml:"name"`
	Set  []string `toml:"set"`
}

// gridKey is a configuration key with its values in TOML.
type gridKey struct {
	key    string
	values []string
}

// readFile reads a sweep file.
func readFile(path string) (*file, error) {
	text, err := config.ReadText(path, "sweep")
	if err != nil {
		return nil, err
	}
	f, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	f.path = path
	return f, nil
}

// keys are the names that a sweep file may hold.
var keys = []string{"config", "recipes", "seeds", "backends", "data", "set", "grid", "variants", "variants.name", "variants.set", "conditions", "conditions.name", "conditions.set"}

// parse parses the text of a sweep file. The error lists all problems.
func parse(text string) (*file, error) {
	if err := config.CheckDepth(text); err != nil {
		return nil, err
	}
	f := &file{}
	meta, err := toml.Decode(text, f)
	if err != nil {
		if at, ok := errors.AsType[toml.ParseError](err); ok {
			return nil, fmt.Errorf("line %d: %s", at.Position.Line, strings.TrimSuffix(at.Message, "."))
		}
		return nil, errors.New(plain(err.Error()))
	}
	var problems []error
	reported := map[string]bool{}
	for _, path := range meta.Undecoded() {
		name := path.String()
		if path[0] == "grid" || reported[path[0]] || reported[name] {
			continue
		}
		reported[name] = true
		meant := spelling.DidYouMean(name, keys)
		if key, ok := config.KeyOf(name); ok && !slices.Contains(keys, name+"s") {
			meant = fmt.Sprintf("; for a configuration key write set = [\"%s=VALUE\"], or a list of its values in [grid]", key)
		}
		if meant == "" {
			meant = "; a sweep file has the keys " + strings.Join(keys, ", ")
		}
		problems = append(problems, fmt.Errorf("unknown key %s%s", name, meant))
	}
	var gridErr error
	f.grid, gridErr = gridOf(f.Grid, meta)
	if err := errors.Join(append(problems, gridErr, f.check())...); err != nil {
		return nil, err
	}
	return f, nil
}

var wrongType = regexp.MustCompile(` \(last key "([^"]*)"\): incompatible types: TOML value has type (\w+); destination has type (\w+)`)

// kinds are the words of a sweep file for the types of the TOML reader.
var kinds = map[string]string{"slice": "a list", "string": "a text", "integer": "a whole number", "float": "a fraction", "float64": "a fraction", "int64": "a whole number"}

// plain puts an error of the TOML reader into the words of a sweep file.
func plain(text string) string {
	return wrongType.ReplaceAllStringFunc(strings.TrimPrefix(text, "toml: "), func(match string) string {
		m := wrongType.FindStringSubmatch(match)
		return fmt.Sprintf(": %s must be %s, not %s", m[1], cmp.Or(kinds[m[3]], m[3]), cmp.Or(kinds[m[2]], m[2]))
	})
}

// gridOf returns the keys of the table grid in the order of the file. A key may be quoted, or
// the name of a table below grid.
func gridOf(grid any, meta toml.MetaData) (list []gridKey, err error) {
	if grid == nil {
		return nil, nil
	}
	if _, ok := grid.(map[string]any); !ok {
		return nil, errors.New("grid is a table: write [grid] on a line of its own and its keys below")
	}
	var problems []error
	for _, path := range meta.Keys() {
		if len(path) < 2 || path[0] != "grid" {
			continue
		}
		value := any(grid)
		for _, name := range path[1:] {
			table, _ := value.(map[string]any)
			value = table[name]
		}
		if _, table := value.(map[string]any); table || value == nil { // nil: a key within a list
			continue
		}
		k := gridKey{key: strings.Join(path[1:], ".")}
		if k.key == "seed" {
			problems = append(problems, errors.New("grid: write the list of seeds as seeds = [1, 2] above the tables, so that runs with equal seeds are compared"))
			continue
		}
		values, ok := value.([]any)
		if !ok || len(values) == 0 {
			problems = append(problems, fmt.Errorf("grid: %s must be a list of values, such as %[1]s = [1, 2]; name combinations of tables in [[variants]]", k.key))
			continue
		}
		for _, v := range values {
			text, err := inTOML(v)
			if err != nil {
				problems = append(problems, fmt.Errorf("grid: %s: %w", k.key, err))
				break
			}
			k.values = append(k.values, text)
		}
		list = append(list, k)
	}
	return list, errors.Join(problems...)
}

// inTOML writes a value that is no table on one line.
func inTOML(value any) (string, error) {
	text, err := toml.Marshal(map[string]any{"v": value})
	line, ok := strings.CutPrefix(strings.TrimSpace(string(text)), "v = ")
	if err != nil || !ok || strings.Contains(line, "\n") {
		return "", fmt.Errorf("the value %v is not a number, a text or a list of these", value)
	}
	return line, nil
}

// check returns an error that lists empty and repeated values.
func (f *file) check() error {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	repeated := func(name string, values []string) {
		for i, v := range values {
			switch {
			case v == "":
				problem("%s: value %d is empty", name, i+1)
			case slices.Contains(values[:i], v):
				problem("%s lists %s twice", name, v)
			}
		}
	}
	repeated("backends", f.Backends)
	for _, k := range f.grid {
		repeated("grid: "+k.key, k.values)
	}
	for i, seed := range f.Seeds {
		if slices.Contains(f.Seeds[:i], seed) {
			problem("seeds lists %d twice", seed)
		}
	}
	var texts, names []string
	for i, paths := range f.Data {
		if len(paths) == 0 || slices.Contains(paths, "") {
			problem("data: value %d names no file: write a list of paths, such as [\"a.txt\"]", i+1)
			continue
		}
		texts = append(texts, strings.Join(paths, ", "))
	}
	repeated("data", texts)
	for _, r := range f.Recipes {
		names = append(names, recipeName(r))
	}
	named := func(key string, list []settings) (names []string) {
		for i, v := range list {
			if v.Name == "" {
				problem("%s: %s %d has no name", key, strings.TrimSuffix(key, "s"), i+1)
				continue
			}
			names = append(names, v.Name)
		}
		return names
	}
	repeated("recipes and variants", append(names, named("variants", f.Variants)...))
	repeated("conditions", named("conditions", f.Conditions))
	return errors.Join(problems...)
}

// recipeName returns the name of a recipe, which for a recipe file is that of the file.
func recipeName(nameOrFile string) string {
	if name, ok := strings.CutSuffix(nameOrFile, ".toml"); ok {
		return filepath.Base(name)
	}
	return nameOrFile
}
