package launch

import (
	"bytes"
	"io"
	"os"
	"slices"
	"sync"

	"golang.org/x/term"
)

// maxLine is the size in bytes from which a line is written in parts.
const maxLine = 64 << 10

// clearLine erases the line of a terminal on which rank 0 shows its progress.
const clearLine = "\r\x1b[K"

// lines is an output that several processes share.
type lines struct {
	mu    sync.Mutex
	to    io.Writer
	clear string // before each line of the supervisor
}

func newLines(to io.Writer) *lines {
	l := &lines{to: to}
	if f, ok := to.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		l.clear = clearLine
	}
	return l
}

// Write implements io.Writer, for the output of rank 0.
func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to.Write(b)
}

// line writes a line.
func (l *lines) line(prefix string, text []byte) {
	_, _ = l.Write(slices.Concat([]byte(l.clear+prefix), text, []byte("\n"))) // a closed output does not stop a run
}

// prefixed is the output of a rank. It writes complete lines, each after a prefix.
type prefixed struct {
	prefix string
	to     *lines
	rest   []byte // an incomplete line
}

func (p *prefixed) Write(b []byte) (int, error) {
	p.rest = append(p.rest, b...)
	for {
		end := bytes.IndexByte(p.rest, '\n') + 1
		if end == 0 {
			if len(p.rest) < maxLine {
				return len(b), nil
			}
			end = maxLine
		}
		p.to.line(p.prefix, bytes.TrimRight(p.rest[:end], "\r\n"))
		p.rest = append(p.rest[:0], p.rest[end:]...)
	}
}

// flush writes an incomplete line.
func (p *prefixed) flush() {
	if len(p.rest) > 0 {
		p.to.line(p.prefix, p.rest)
		p.rest = nil
	}
}
