package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// RunFile is the name of the configuration file in a run folder.
const RunFile = "config.toml"

// maxFile bounds a configuration file, in bytes, in case a checkpoint is named instead.
const maxFile = 256 << 10

func readFile(path string) (*source, error) {
	text, err := ReadText(path, "configuration")
	if err != nil {
		return nil, err
	}
	s, err := parse(path, text)
	if err != nil && filepath.Ext(path) != ".toml" {
		err = fmt.Errorf("%w; give a text to train on as data.paths", err)
	}
	if err == nil {
		err = s.openRecipes(filepath.Dir(path))
	}
	return s, err
}

// ReadText reads a file of at most maxFile bytes; kind names it in errors.
func ReadText(path, kind string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("the %s file cannot be read: %w", kind, err)
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return "", fmt.Errorf("%s is a folder; name a %s file, such as %s, or give a folder of text as data.paths", path, kind, filepath.Join(path, RunFile))
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return "", fmt.Errorf("the %s file cannot be read: %w", kind, err)
	}
	if len(text) > maxFile {
		return "", fmt.Errorf("%s is larger than %d KiB, the limit of a %s file; name a TOML file, or give a text as data.paths", path, maxFile>>10, kind)
	}
	return string(text), nil
}

// parse parses the text of a configuration file; errors begin with name.
func parse(name, text string) (*source, error) {
	if err := CheckDepth(text); err != nil {
		return nil, fmt.Errorf("%s, %w", name, err)
	}
	var tree map[string]any
	meta, err := toml.Decode(text, &tree)
	lines := findLines(text)
	if err != nil {
		return nil, syntaxError(name, lines, err)
	}
	s := &source{}
	for _, path := range meta.Keys() {
		full := path.String()
		if isTable(full) {
			if meta.Type(path...) != "Hash" {
				return nil, fmt.Errorf("%s: %s is a section; write [%s] on a line of its own and its keys below", lines.place(name, full), full, full)
			}
			continue
		}
		if list, within, ok := splitTableKey(full); ok && slices.Contains(list.tableKeys(), within) {
			continue
		}
		k, ok := findKey(full)
		if !ok {
			return nil, fmt.Errorf("%s: %w", lines.place(name, full), unknownKey(full))
		}
		place := lines.place(name, full)
		switch first, again := s.find(k.name); {
		case !again:
			s.settings = append(s.settings, setting{k, lookup(tree, path), place})
		case first.place != place: // under a former name; the library lists a list of tables once for each table
			return nil, fmt.Errorf("%s: %s and its former name are both given; keep %s", place, k.name, k.name)
		}
	}
	return s, nil
}

func isTable(name string) bool {
	return slices.ContainsFunc(sections, func(s section) bool { return s.name == name && name != "" })
}

// lookup returns the value at an existing path of keys.
func lookup(tree map[string]any, path []string) any {
	for _, name := range path[:len(path)-1] {
		tree, _ = tree[name].(map[string]any)
	}
	return tree[path[len(path)-1]]
}

// syntaxError converts the library's error to the form of this package. In TOML, a duplicate
// key is a syntax error, of which the library reports only the second place.
func syntaxError(name string, lines lineIndex, err error) error {
	var parse toml.ParseError
	if !errors.As(err, &parse) {
		return fmt.Errorf("%s: %s", name, strings.TrimPrefix(err.Error(), "toml: "))
	}
	at := parse.Position.Line
	for _, key := range lines.names {
		on := lines.at[key]
		if i := slices.Index(on, at); i > 0 {
			if isTable(key) {
				key = "[" + key + "]"
			}
			return fmt.Errorf("%s: %s is given twice, on line %d and on line %d; keep one of them", name, key, on[0], at)
		}
	}
	return fmt.Errorf("%s:%d: %s", name, at, strings.TrimSuffix(parse.Message, "."))
}

// lineIndex maps keys and table headers to their lines, which the library does not report.
// It serves errors and reports only: a multi-line string that looks like keys may mislead it.
type lineIndex struct {
	names []string // in order of appearance
	at    map[string][]int
}

var (
	headerLine = regexp.MustCompile(`^\s*\[\[?([^\[\]]+)\]`)
	keyLine    = regexp.MustCompile(`^\s*([\w."' -]+?)\s*=`)
	nameNoise  = strings.NewReplacer(`"`, "", `'`, "", " ", "", "\t", "")
)

func findLines(text string) lineIndex {
	index := lineIndex{at: map[string][]int{}}
	table := ""
	for i, line := range strings.Split(text, "\n") {
		var name string
		if m := headerLine.FindStringSubmatch(line); m != nil {
			name = nameNoise.Replace(m[1])
			table = name + "."
		} else if m := keyLine.FindStringSubmatch(line); m != nil {
			name = table + nameNoise.Replace(m[1])
		} else {
			continue
		}
		if index.at[name] == nil {
			index.names = append(index.names, name)
		}
		index.at[name] = append(index.at[name], i+1)
	}
	return index
}

// place returns "file:line" of a key, or of the nearest enclosing table that has a line.
func (x lineIndex) place(file, key string) string {
	for {
		if on := x.at[key]; len(on) > 0 {
			return fmt.Sprintf("%s:%d", file, on[0])
		}
		dot := strings.LastIndexByte(key, '.')
		if dot < 0 {
			return file
		}
		key = key[:dot]
	}
}
