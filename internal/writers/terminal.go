package writers

import (
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// Columns returns the current width of the terminal that w writes to; 0 if w is not a
// terminal, or a dumb one without carriage returns.
func Columns(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || os.Getenv("TERM") == "dumb" {
		return 0
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil || columns <= 0 {
		return 80
	}
	return columns
}

// Reflow breaks lines that are longer than a number of columns between words; a terminal
// would break them within words. It indents continuation lines like the second field of the
// line, which two spaces separate from the first. Words that are too long stay whole. With 0
// columns Reflow changes nothing.
func Reflow(text string, columns int) string {
	if columns <= 0 {
		return text
	}
	var out strings.Builder
	for line := range strings.Lines(text) {
		body, newline := strings.CutSuffix(line, "\n")
		indent := hangingIndent(body)
		if indent > columns/2 {
			indent = 0
		}
		for utf8.RuneCountInString(body) > columns {
			at := breakBefore(body, columns, indent)
			if at < 0 {
				break
			}
			out.WriteString(strings.TrimRight(body[:at], " "))
			out.WriteByte('\n')
			body = strings.Repeat(" ", indent) + strings.TrimLeft(body[at:], " ")
		}
		out.WriteString(body)
		if newline {
			out.WriteByte('\n')
		}
	}
	return out.String()
}

// hangingIndent returns the column at which the text of a line begins after a mark of octet
// doctor; else the first field of an indented line, or the second field; 0 for a line of one
// field.
func hangingIndent(line string) int {
	first := strings.TrimLeft(line, " ")
	lead := len(line) - len(first)
	if mark, _, _ := strings.Cut(first, " "); strings.Contains("✓✗-", mark) && mark != "" {
		return lead + 2
	}
	if lead > 0 {
		return lead
	}
	head, rest, ok := strings.Cut(line, "  ")
	if !ok {
		return 0
	}
	return utf8.RuneCountInString(head) + 2 + len(rest) - len(strings.TrimLeft(rest, " "))
}

// breakBefore returns the byte index of the last space of a line that at most the given
// number of columns precede; of the first space if the first word is too long; -1 without a
// space.
func breakBefore(line string, columns, indent int) int {
	last, column := -1, 0
	for at, r := range line {
		if r == ' ' && column > indent && strings.TrimLeft(line[at:], " ") != "" {
			if column > columns {
				if last < 0 {
					last = at
				}
				break
			}
			last = at
		}
		column++
	}
	return last
}
