package config

import (
	"fmt"
	"strings"
)

// maxDepth is how deep lists and tables may lie in each other, and how many names
// a dotted key may have. Ours have three. The TOML library takes quadratic time
// and memory for them: a quarter of a megabyte of "a.a.a.…" takes many gigabytes.
const maxDepth = 32

// checkDepth refuses what is deeper. It knows as much of TOML as tells brackets
// and dots from those in texts and comments.
func checkDepth(text string) error {
	depth, dots, line := 0, 0, 1
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '#':
			end := strings.IndexByte(text[i:], '\n')
			if end < 0 {
				return nil
			}
			i += end - 1
		case '"', '\'':
			end := stringEnd(text[i:], c)
			line += strings.Count(text[i:i+end], "\n")
			i += end - 1
		case '[', '{':
			depth++
			dots = 0
		case ']', '}':
			depth--
			dots = 0
		case '.':
			dots++
		case '\n':
			line++
			dots = 0
		case '=', ',':
			dots = 0
		}
		if max(depth, dots) > maxDepth {
			return fmt.Errorf("line %d: more than %d lists, tables or names of a key within each other", line, maxDepth)
		}
	}
	return nil
}

// stringEnd is the length of the TOML string that text begins with: one without
// an end is as long as its line, or as all the text if it may have several.
func stringEnd(text string, quote byte) int {
	triple := strings.Repeat(string(quote), 3)
	several := strings.HasPrefix(text, triple)
	i := 1
	if several {
		i = 3
	}
	for ; i < len(text); i++ {
		switch {
		case text[i] == '\\' && quote == '"':
			i++
		case text[i] == '\n' && !several:
			return i
		case text[i] == quote && !several:
			return i + 1
		case several && strings.HasPrefix(text[i:], triple):
			i += 3
			for n := 0; n < 2 && i < len(text) && text[i] == quote; n++ { // quotes before the end are its own
				i++
			}
			return i
		}
	}
	return len(text)
}
