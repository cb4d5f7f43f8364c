package runs

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Group is runs that differ in their seed only.
type Group struct {
	Name string
	Runs []*Run // in the order of their seeds
	// Baseline is the group to compare with, at equal seeds; nil: this group is one.
	Baseline *Group
}

// Pair is a run of a group, and the baseline's run with the same seed.
type Pair struct{ Run, Baseline *Run }

// Distinct returns the first run of each seed, and all runs whose seed is unknown: copies of a
// run are no further evidence.
func (g *Group) Distinct() (list []*Run) {
	for i, r := range g.Runs {
		if r.Seed() == "" || i == 0 || g.Runs[i-1].Seed() != r.Seed() {
			list = append(list, r)
		}
	}
	return list
}

// Pairs returns the pairs of the group, one for each seed; none without a baseline. A run whose
// seed is unknown is in none.
func (g *Group) Pairs() (list []Pair) {
	if g.Baseline == nil {
		return nil
	}
	for _, r := range g.Distinct() {
		for _, b := range g.Baseline.Runs {
			if r.Seed() != "" && b.Seed() == r.Seed() {
				list = append(list, Pair{r, b})
				break
			}
		}
	}
	return list
}

// Seed returns the seed of the configuration; empty if it is unknown.
func (r *Run) Seed() string { return r.Config["seed"] }

// Device returns the backend and device model of the last start, such as emu:h100; empty if
// it is unknown. run.log has "emu, avx2", or "emu, h100+avx2" with a model.
func (r *Run) Device() string {
	name, arithmetic, _ := strings.Cut(r.Backend, ", ")
	if model, _, ok := strings.Cut(arithmetic, "+"); ok {
		return name + ":" + model
	}
	return name
}

// settings returns everything that the runs of a group have in common.
func (r *Run) settings() string {
	text := strconv.AppendQuote(nil, r.Device())
	for _, key := range slices.Sorted(maps.Keys(r.Config)) {
		if key != "seed" {
			text = strconv.AppendQuote(strconv.AppendQuote(text, key), r.Config[key])
		}
	}
	return string(text)
}

// GroupsOf groups runs by their configuration, apart from the seed, and by their device, in
// the order in which each first appears. The first group is the baseline of the others. A
// group's name is its recipe; groups of one recipe have the keys that differ between them in
// their names.
func GroupsOf(list []*Run) (groups []*Group) {
	bySettings := map[string]*Group{}
	for _, r := range list {
		key := r.settings()
		g := bySettings[key]
		if g == nil {
			g = &Group{Name: r.Config["recipe"]}
			bySettings[key] = g
			groups = append(groups, g)
		}
		g.Runs = append(g.Runs, r)
	}
	byName := map[string][]*Group{}
	for i, g := range groups {
		if i > 0 {
			g.Baseline = groups[0]
		}
		byName[g.Name] = append(byName[g.Name], g)
		slices.SortStableFunc(g.Runs, func(a, b *Run) int { return compareNames(a.Seed(), b.Seed()) })
	}
	for _, same := range byName {
		distinguish(same)
	}
	return groups
}

// namedKeys is the number of keys that a group's name has at most.
const namedKeys = 3

// distinguish adds to the names of groups with one name what differs between them.
func distinguish(groups []*Group) {
	if len(groups) == 1 {
		return
	}
	var first []*Run
	devices := map[string]bool{}
	for _, g := range groups {
		first = append(first, g.Runs[0])
		devices[g.Runs[0].Device()] = true
	}
	keys := Differing(first)
	for _, g := range groups {
		var parts []string
		for _, key := range keys[:min(namedKeys, len(keys))] {
			short := key[strings.LastIndexByte(key, '.')+1:]
			parts = append(parts, short+"="+g.Runs[0].Config[key])
		}
		if len(devices) > 1 {
			parts = append(parts, "on "+g.Runs[0].Device())
		}
		g.Name = strings.TrimSpace(g.Name + " " + strings.Join(parts, " "))
	}
}

// Differing returns the keys of which the configurations of some runs have different values,
// in alphabetical order. It ignores the seed.
func Differing(list []*Run) (keys []string) {
	all := map[string]bool{}
	for _, r := range list {
		for key := range r.Config {
			all[key] = true
		}
	}
	delete(all, "seed")
	for _, key := range slices.Sorted(maps.Keys(all)) {
		for _, r := range list {
			if r.Config[key] != list[0].Config[key] {
				keys = append(keys, key)
				break
			}
		}
	}
	return keys
}
