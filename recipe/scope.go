package recipe

import (
	"fmt"
	"iter"
	"path"
	"slices"
	"strconv"
	"strings"
)

// A scope selects linear layers by their path. It is a pattern of path.Match, in which *
// also matches dots. One slice after a name, as in "layers[-2:].mlp.*", selects the
// numbers below that name as a slice of Python does: from inclusive, to exclusive, and
// negative numbers count from the end. The largest number in a model ends its range.

// cutSlice splits a scope at its first slice. ok is false for a scope without one.
func cutSlice(scope string) (name, bounds, rest string, ok bool) {
	for from := 0; ; {
		open := strings.IndexByte(scope[from:], '[')
		if open < 0 {
			return "", "", "", false
		}
		open += from
		size := strings.IndexByte(scope[open:], ']')
		if size < 0 {
			return "", "", "", false
		}
		bounds = scope[open+1 : open+size]
		if strings.Contains(bounds, ":") && strings.Trim(bounds, "-0123456789:") == "" {
			return scope[:open], bounds, scope[open+size+1:], true
		}
		from = open + size + 1 // a class of characters
	}
}

// bound is one end of a slice.
type bound struct {
	n     int
	given bool
}

// parseSlice returns the ends of the slice "from:to".
func parseSlice(bounds string) (from, to bound, err error) {
	first, second, _ := strings.Cut(bounds, ":")
	for _, b := range []struct {
		text string
		to   *bound
	}{{first, &from}, {second, &to}} {
		if b.text == "" {
			continue
		}
		if b.to.n, err = strconv.Atoi(b.text); err != nil {
			return from, to, fmt.Errorf("[%s] is not a slice from:to of whole numbers, such as [:2], [-8:] and [1:3]", bounds)
		}
		b.to.given = true
	}
	return from, to, nil
}

// at returns the index that b means among n, or otherwise if b is not given.
func (b bound) at(n, otherwise int) int {
	switch {
	case !b.given:
		return otherwise
	case b.n < 0:
		return max(0, b.n+n)
	}
	return min(b.n, n)
}

// CheckScope returns an error for a scope that is no pattern, or whose slice no model has.
func CheckScope(scope string) error {
	name, bounds, rest, sliced := cutSlice(scope)
	if !sliced {
		return checkPattern(scope, scope)
	}
	from, to, err := parseSlice(bounds)
	if err != nil {
		return fmt.Errorf("scope %q: %w", scope, err)
	}
	if name == "" || strings.HasSuffix(name, ".") {
		return fmt.Errorf("scope %q: a slice must follow a name; use %q", scope, strings.TrimSuffix(name, ".")+"["+bounds+"]"+rest)
	}
	if _, _, _, more := cutSlice(rest); more {
		return fmt.Errorf("scope %q has two slices; use one, and a row for each", scope)
	}
	if to.given && (to.n == 0 || to.n <= from.n && (to.n < 0) == (from.n < 0)) {
		return fmt.Errorf("scope %q: the slice [%s] is empty in every model; its end must be after its start", scope, bounds)
	}
	return checkPattern(scope, name, rest)
}

func checkPattern(scope string, patterns ...string) error {
	for _, pattern := range patterns {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("scope %q is not a valid glob pattern; close its bracket, escape it as \\[, or write a slice as in layers[-1:].* (see path.Match)", scope)
		}
	}
	return nil
}

// numbers yields the parts of a layer's path around each of its numbers: "layers", 3 and
// ".mlp.up_proj" of "layers.3.mlp.up_proj".
func numbers(scope string) iter.Seq2[int, [2]string] {
	return func(yield func(int, [2]string) bool) {
		for at := 0; at < len(scope); {
			part, _, _ := strings.Cut(scope[at:], ".")
			end := at + len(part)
			if n, err := strconv.ParseUint(part, 10, 31); err == nil && at > 0 && !yield(int(n), [2]string{scope[:at-1], scope[end:]}) {
				return
			}
			at = end + 1
		}
	}
}

// depths returns, for each path that numbers follow in a model, how many there are.
func depths(layers []Layer) map[string]int {
	count := map[string]int{}
	for _, l := range layers {
		for n, parts := range numbers(l.Scope) {
			count[parts[0]] = max(count[parts[0]], n+1)
		}
	}
	return count
}

// inScope reports whether a scope that CheckScope accepts matches the path of a layer of a
// model with these depths.
func inScope(scope, layer string, depths map[string]int) bool {
	name, bounds, rest, sliced := cutSlice(scope)
	if !sliced {
		ok, _ := path.Match(scope, layer)
		return ok
	}
	from, to, _ := parseSlice(bounds)
	for n, parts := range numbers(layer) {
		depth := depths[parts[0]]
		if n < from.at(depth, 0) || n >= to.at(depth, depth) {
			continue
		}
		before, _ := path.Match(name, parts[0])
		after, _ := path.Match(rest, parts[1])
		if before && after {
			return true
		}
	}
	return false
}

// Select returns the layers of a model that a scope matches.
func Select(scope string, layers []Layer) (list []Layer) {
	of := depths(layers)
	for _, l := range layers {
		if inScope(scope, l.Scope, of) {
			list = append(list, l)
		}
	}
	return list
}

// Over returns the recipe for a model with these linear layers, which the slices in scopes
// count. For does so too.
func (r Recipe) Over(layers []Layer) Recipe {
	if r.sliced() {
		r.depths = depths(layers)
	}
	return r
}

// NeedsLayers reports whether a scope has a slice and Over has not counted the layers yet.
func (r Recipe) NeedsLayers() bool { return r.depths == nil && r.sliced() }

func (r Recipe) sliced() bool {
	return slices.ContainsFunc(r.Rows, func(row Row) bool {
		_, _, _, sliced := cutSlice(row.Scope)
		return sliced
	})
}

// Casts lists the different casts of a model's GEMM operands.
func (r Recipe) Casts(layers []Layer) (list []Cast) {
	for _, g := range r.groups(layers) {
		for _, pair := range g.casts {
			for _, c := range pair {
				if !slices.Contains(list, c) {
					list = append(list, c)
				}
			}
		}
	}
	return list
}

// Unquantized reports whether rows name a format with scales and none of these layers gets
// one: rows before them decide all.
func (r Recipe) Unquantized(layers []Layer) bool {
	return slices.ContainsFunc(r.Rows, func(row Row) bool { return row.DType.IsQuantized() }) &&
		!slices.ContainsFunc(r.Casts(layers), func(c Cast) bool { return c.DType.IsQuantized() })
}
