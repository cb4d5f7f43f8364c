// Package spelling suggests the known name that a user may have meant by an unknown one:
// a configuration key, a recipe, a backend, a device model.
package spelling

import (
	"regexp"
	"strings"
)

var name = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,39}$`)

// NameRule describes a valid name in an error.
const NameRule = "at most 40 lower-case letters, digits, - and _, the first a letter"

// IsName reports whether s follows NameRule, so that it can stand in files and messages.
func IsName(s string) bool { return name.MatchString(s) }

// DidYouMean returns a suggestion to append to an error, "; did you mean cuda?", or ""
// if no known name is close: one letter in three may be wrong. In dotted names, a
// missing or wrong section counts as one wrong letter.
func DidYouMean(name string, known []string) string {
	best, cost := nearest(name, known)
	// A section before the name is right or wrong as a whole, so its letters do not
	// raise the limit.
	last := name[strings.LastIndexByte(name, '.')+1:]
	if best == "" || cost > (len(last)+1)/3 {
		return ""
	}
	return "; did you mean " + best + "?"
}

func nearest(name string, known []string) (best string, cost int) {
	cost = 1 << 30
	name = strings.ToLower(name) // known names are lower case
	last := name[strings.LastIndexByte(name, '.')+1:]
	for _, k := range known {
		c := min(distance(name, k), 1+distance(last, k[strings.LastIndexByte(k, '.')+1:]))
		if c < cost {
			best, cost = k, c
		}
	}
	return best, cost
}

// distance returns the number of bytes to insert, delete or replace to change a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
