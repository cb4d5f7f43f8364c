package sweep

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"octet/internal/config"
	"octet/train"
)

// Variant is a combination of the values of a sweep: everything but the seed.
type Variant struct {
	Name   string
	Folder string // below runs, configs and logs; more values in the file do not change it
	// Baseline is the variant to compare with: the first value of the first dimension that
	// has several, with the same values of the others. nil: this variant is a baseline.
	Baseline *Variant
	Backend  string // --backend of its runs; empty: that of the sweep
	Seeds    []int64
	Config   train.Config // with the first seed

	device string // backend and device model, which a resumed sweep must not change
}

// configOf returns the configuration of the run with a seed.
func (v *Variant) configOf(seed int64) train.Config {
	c := v.Config
	c.Seed = seed
	return c
}

// value is a value of a dimension, and how it changes the configuration or the backend.
type value struct {
	name    string // part of a variant's name
	set     []string
	data    []string
	backend string
}

// dimensions returns the values of each list of the file, in the order of precedence for the
// baseline.
func (f *file) dimensions() (list [][]value) {
	var recipes, conditions, backends, texts []value
	for _, r := range f.Recipes {
		recipes = append(recipes, value{name: recipeName(r), set: []string{"recipe=" + r}})
	}
	for _, v := range f.Variants {
		recipes = append(recipes, value{name: v.Name, set: v.Set})
	}
	for _, c := range f.Conditions {
		conditions = append(conditions, value{name: c.Name, set: c.Set})
	}
	for _, b := range f.Backends {
		backends = append(backends, value{name: "on " + b, backend: b})
	}
	for _, paths := range f.Data {
		texts = append(texts, value{name: "data=" + strings.Join(paths, "+"), data: paths})
	}
	list = [][]value{recipes, conditions, backends, texts}
	short := map[string]int{}
	for _, k := range f.grid {
		short[lastPart(k.key)]++
	}
	for _, k := range f.grid {
		name := lastPart(k.key)
		if short[name] > 1 {
			name = k.key
		}
		var values []value
		for _, text := range k.values {
			values = append(values, value{name: name + "=" + strings.Trim(text, `"`), set: []string{k.key + "=" + text}})
		}
		list = append(list, values)
	}
	return slices.DeleteFunc(list, func(values []value) bool { return len(values) == 0 })
}

// lastPart returns the name of a key within its section.
func lastPart(key string) string { return key[strings.LastIndexByte(key, '.')+1:] }

// variants returns the variants of the file, the last dimension fastest. The error lists all
// problems of their configurations.
func (f *file) variants() ([]*Variant, error) {
	dimensions := f.dimensions()
	total := max(1, len(f.Seeds))
	for _, d := range dimensions {
		if total *= len(d); total > maxRuns {
			return nil, fmt.Errorf("the sweep has more than %d runs: give fewer values", maxRuns)
		}
	}
	if total < 2 {
		return nil, errors.New("the sweep has one run: give several seeds, recipes, backends, texts (data), variants, or values in [grid]; octet train trains one run")
	}
	compared := slices.IndexFunc(dimensions, func(d []value) bool { return len(d) > 1 })
	var list []*Variant
	var problems problems
	at := make([]int, len(dimensions))
	for {
		var values []value
		var names []string // in all dimensions with several values
		for i, d := range dimensions {
			values = append(values, d[at[i]])
			if len(d) > 1 {
				names = append(names, d[at[i]].name)
			}
		}
		v, err := f.variant(values)
		if len(names) > 0 {
			v.Name = strings.Join(names, " ")
		}
		problems.add(v.Name, err)
		if compared >= 0 && at[compared] > 0 {
			step := 1 // between neighbours of the compared dimension
			for _, d := range dimensions[compared+1:] {
				step *= len(d)
			}
			v.Baseline = list[len(list)-at[compared]*step]
		}
		list = append(list, v)
		i := len(at) - 1
		for ; i >= 0; i-- {
			if at[i]++; at[i] < len(dimensions[i]) {
				break
			}
			at[i] = 0
		}
		if i < 0 {
			break
		}
	}
	folders := map[string]string{}
	for _, v := range list {
		folder := strings.ToLower(v.Folder) // some file systems ignore case
		if other, taken := folders[folder]; taken {
			problems.add("", fmt.Errorf("the variants %q and %q have one folder, %s: rename one, or give it a name of its own in [[variants]]", other, v.Name, v.Folder))
		}
		folders[folder] = v.Name
	}
	return list, problems.err()
}

// Limits of a sweep.
const (
	maxRuns   = 10_000
	maxFolder = 200 // bytes of a variant's folder, which file systems limit to 255
)

// variant resolves the configuration of a combination of values. Its name and folder have all
// values, so that the folder stays if the file gets more of them.
func (f *file) variant(values []value) (*Variant, error) {
	v := &Variant{Seeds: f.Seeds}
	dir := filepath.Dir(f.path)
	args := config.Args{Dir: dir, Assignments: slices.Clone(f.Set)}
	if f.Config != "" {
		args.File = f.Config
		if !filepath.IsAbs(args.File) {
			args.File = filepath.Join(dir, args.File)
		}
	}
	var names []string
	for _, x := range values {
		names = append(names, x.name)
		args.Assignments = append(args.Assignments, x.set...)
		if x.data != nil {
			args.Flags.Data = x.data
		}
		if x.backend != "" {
			v.Backend = x.backend
		}
	}
	if len(f.Seeds) > 0 {
		args.Flags.Seed = config.Once{Value: strconv.FormatInt(f.Seeds[0], 10), Given: true}
	}
	v.Name = strings.Join(names, " ")
	loaded, err := config.New(args)
	if err == nil {
		v.Config = loaded.Config
		if v.Name == "" {
			v.Name = v.Config.Recipe
		}
		if v.Seeds == nil {
			v.Seeds = []int64{v.Config.Seed}
		}
	}
	v.Folder = folderOf(v.Name)
	if err == nil && len(v.Folder) > maxFolder {
		err = fmt.Errorf("the name has more than %d characters: give it a short one in [[variants]]", maxFolder)
	}
	return v, err
}

var (
	unsafe     = regexp.MustCompile(`[^A-Za-z0-9._=+-]+`)
	safeFolder = regexp.MustCompile(`^[A-Za-z0-9_=+-][A-Za-z0-9._=+-]*$`)
)

// folderOf returns the folder of a variant's name: letters, digits and -._=+ stay.
func folderOf(name string) string {
	folder := strings.Trim(unsafe.ReplaceAllString(name, "_"), "_.")
	if folder == "" {
		return "_"
	}
	return folder
}

// problems collects errors. Equal errors of several variants become one.
type problems struct {
	texts []string
	of    map[string][]string // variants, by text
}

// add adds an error of a variant; nil is none. An empty name stands for the whole sweep.
func (p *problems) add(variant string, err error) {
	if err == nil {
		return
	}
	text := err.Error()
	if p.of == nil {
		p.of = map[string][]string{}
	}
	if _, known := p.of[text]; !known {
		p.texts = append(p.texts, text)
	}
	names := p.of[text]
	if variant != "" && !slices.Contains(names, variant) {
		names = append(names, variant)
	}
	p.of[text] = names
}

// err returns an error with a line for each problem; nil if there is none.
func (p *problems) err() error {
	var errs []error
	for _, text := range p.texts {
		switch names := p.of[text]; len(names) {
		case 0:
			errs = append(errs, errors.New(text))
		case 1:
			errs = append(errs, fmt.Errorf("%s: %s", names[0], text))
		default:
			errs = append(errs, fmt.Errorf("%s and %d more: %s", names[0], len(names)-1, text))
		}
	}
	return errors.Join(errs...)
}
