package config

import (
	"fmt"
	"strings"
)

// maxDepth bounds the nesting of lists and tables, and the names of a dotted key; the
// config has at most three. The TOML library takes quadratic time and memory for them: a
// quarter of a megabyte of "a.a.a.…" takes many gigabytes.
const maxDepth = 32

// CheckDepth returns an error for a TOML text whose lists, tables or dotted keys nest deeper
// than 32 levels. It parses just enough TOML to ignore brackets and dots in strings and
// comments.
func CheckDepth(text string) error {
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
			return fmt.Errorf("line %d: more than %d nested lists, tables or names of a key", line, maxDepth)
		}
	}
	return nil
}

// stringEnd returns the length of the TOML string at the beginning of text. A string without
// an end extends to the end of its line, or of the text if it is a multi-line string.
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
			for n := 0; n < 2 && i < len(text) && text[i] == quote; n++ { // up to two quotes before the end belong to the string
				i++
			}
			return i
		}
	}
	return len(text)
}
