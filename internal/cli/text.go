package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"runtime"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"octet/infer"
	"octet/internal/writers"
	"octet/tokenizer"
)

// writeText prints a prompt, its continuation in whole characters as it is generated, and a newline.
func (t *terminal) writeText(ctx context.Context, g *infer.Generator, tok *tokenizer.Bundle, prompt string, ids []int32, n int, s infer.Sampling, stops []string) error {
	out := &stdout{to: t.out}
	var to io.Writer = out
	var shown *printable
	if isTerminal(t.out) {
		shown = &printable{to: out}
		to = shown
	}
	_, _ = io.WriteString(to, prompt) // out keeps the error
	end := &stopper{stops: stops, to: func(part []byte) { _, _ = to.Write(part) }}
	err := g.Generate(ctx, ids, n, s, func(id int32) bool {
		return !tok.Ends(id) && end.write(tok.Text(id)) && out.err == nil
	})
	end.flush()
	if shown != nil {
		_ = shown.flush()
	}
	_, _ = io.WriteString(out, "\n")
	return errors.Join(err, out.err)
}

// incomplete returns the length of the incomplete character at the end of a text: 0 to 3 bytes.
func incomplete(text []byte) int {
	for n := 1; n <= min(utf8.UTFMax-1, len(text)); n++ {
		if tail := text[len(text)-n:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}

// stdout keeps the first error of a write and writes nothing after it: every later line
// would fail for the same reason.
type stdout struct {
	to  io.Writer
	err error // the first
}

func (o *stdout) Write(b []byte) (n int, err error) {
	if o.err == nil {
		n, o.err = o.to.Write(b)
	}
	return n, o.err
}

func isTerminal(w io.Writer) bool {
	switch w := w.(type) {
	case *stdout:
		return isTerminal(w.to)
	case *os.File:
		return term.IsTerminal(int(w.Fd()))
	}
	return false
}

// printable replaces control characters and bytes that are not UTF-8, which a terminal
// would obey or not show. A model over bytes writes both.
type printable struct {
	to   io.Writer
	rest []byte // an incomplete character
}

const hidden = "·"

func (p *printable) Write(b []byte) (int, error) {
	p.rest = append(p.rest, b...)
	var out []byte
	for len(p.rest) > 0 && utf8.FullRune(p.rest) {
		r, size := utf8.DecodeRune(p.rest)
		switch {
		case r == utf8.RuneError && size == 1, !unicode.IsGraphic(r) && r != '\n' && r != '\t':
			out = append(out, hidden...)
		default:
			out = append(out, p.rest[:size]...)
		}
		p.rest = p.rest[size:]
	}
	_, err := p.to.Write(out)
	return len(b), err
}

// flush writes a replacement for each byte of an incomplete character.
func (p *printable) flush() error {
	_, err := io.WriteString(p.to, strings.Repeat(hidden, len(p.rest)))
	p.rest = nil
	return err
}

// shellQuote quotes a word for a shell, unless none of its bytes is special there.
func shellQuote(s string) string {
	if s != "" && strings.Trim(s, bareBytes) == "" {
		return s
	}
	return doubleQuote(s)
}

const bareBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@%+=,"

// doubleQuote quotes a word with double quotes, which every shell knows, or with single
// quotes if a Unix shell would expand it within double ones.
func doubleQuote(s string) string {
	if runtime.GOOS == "windows" || !strings.ContainsAny(s, "\"$`!\\") {
		return `"` + s + `"`
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// wrapComments breaks the comments of a TOML text that are longer than a number of columns.
// With 0 columns it changes nothing.
func wrapComments(text string, columns int) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		at := strings.LastIndex(line, "# ")
		indent := utf8.RuneCountInString(line[:max(at, 0)])
		if width := columns - indent - len("# "); at > 0 && width > minName {
			next := "\n" + strings.Repeat(" ", indent) + "# "
			comment := writers.Reflow(strings.TrimSuffix(line[at+len("# "):], "\n"), width)
			line = line[:at] + "# " + strings.ReplaceAll(comment, "\n", next) + "\n"
		}
		out.WriteString(line)
	}
	return out.String()
}
