// Package task reads task files, turns their documents into rows of tokens to score, and computes
// metrics from the scores. The rules are those of lm-evaluation-harness 0.4.13 without examples in
// the prompt (lm_eval/api/task.py, lm_eval/api/model.py, lm_eval/models/huggingface.py). Converters
// write task files from rows of published data sets, by the harness's tasks of the same names.
package task

import (
	"strings"
	"unicode"
)

// A space is what Python's str.isspace accepts: Unicode white space, and four separators of ASCII.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

func strip(s string) string { return strings.TrimFunc(s, isSpace) }

// words counts as the harness does: parts between runs of white space, empty ones at the ends
// included.
func words(s string) int {
	n, inSpace := 1, false
	for _, r := range s {
		space := isSpace(r)
		if space && !inSpace {
			n++
		}
		inSpace = space
	}
	return n
}
