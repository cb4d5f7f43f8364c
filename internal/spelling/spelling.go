// Package spelling finds the name that a user meant by one that nothing has: a
// configuration key, a recipe, a backend, a device model.
package spelling

import "strings"

// DidYouMean is a question to end an error with, "; did you mean cuda?", or
// nothing where no known name is near: one letter in three may be wrong. In dotted
// names, a forgotten or wrong section costs no more than a wrong letter.
func DidYouMean(name string, known []string) string {
	best, cost := nearest(name, known)
	// A section in front of the name is right or wrong as a whole: its letters make no
	// name near.
	last := name[strings.LastIndexByte(name, '.')+1:]
	if best == "" || cost > (len(last)+1)/3 {
		return ""
	}
	return "; did you mean " + best + "?"
}

func nearest(name string, known []string) (best string, cost int) {
	cost = 1 << 30
	name = strings.ToLower(name) // as all names are
	last := name[strings.LastIndexByte(name, '.')+1:]
	for _, k := range known {
		c := min(distance(name, k), 1+distance(last, k[strings.LastIndexByte(k, '.')+1:]))
		if c < cost {
			best, cost = k, c
		}
	}
	return best, cost
}

// distance is the number of bytes to insert, delete or replace to turn a into
// b.
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
