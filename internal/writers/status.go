package writers

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// Status holds the values of a step that the status line shows.
type Status struct {
	Step, Steps  int
	Loss         float64
	Accuracy     *float64 // within [0, 1]; nil unless train.objective = "dpo"
	GradNorm     float64
	LR           float64
	TokensPerSec float64 // of the steps of MFU, of the last step without it; so is FlopsPerSec
	FlopsPerSec  float64
	MFU          *float64 // share of the devices' peak in the last interval of steps, within [0, 1]; nil: unknown
	Memory       int64    // bytes
	// Readings of the device; nil if it does not report them. Several devices give the
	// minimum, the sum and the maximum.
	Utilization *float64       // within [0, 1]
	Power       *float64       // W
	Temperature *float64       // °C
	ETA         *time.Duration // nil: unknown
}

// fields returns the fields of the line, from left to right.
func (s Status) fields() []string {
	tokens := number(s.TokensPerSec, "%.0f")
	if finite(s.TokensPerSec) {
		tokens = commas(tokens)
	}
	fields := []string{
		fmt.Sprintf("step %d/%d", s.Step, s.Steps),
		"loss " + number(s.Loss, "%.4f"),
	}
	if s.Accuracy != nil {
		fields = append(fields, fmt.Sprintf("acc %.0f%%", 100**s.Accuracy))
	}
	fields = append(fields,
		"|g| "+strings.TrimSuffix(number(s.GradNorm, "%#.3g"), "."),
		"lr "+number(s.LR, "%.1e"),
		tokens+" tok/s",
		Quantity(s.FlopsPerSec, "FLOP/s"),
	)
	if s.MFU != nil {
		fields = append(fields, fmt.Sprintf("mfu %.0f%%", 100**s.MFU))
	}
	fields = append(fields, Bytes(s.Memory))
	if s.Utilization != nil {
		fields = append(fields, fmt.Sprintf("%.0f%% busy", 100**s.Utilization))
	}
	if s.Power != nil {
		fields = append(fields, Quantity(*s.Power, "W"))
	}
	if s.Temperature != nil {
		fields = append(fields, fmt.Sprintf("%.0f C", *s.Temperature))
	}
	eta := "-:--"
	if s.ETA != nil {
		eta = Clock(*s.ETA)
	}
	return append(fields, "ETA "+eta)
}

// String returns the whole line.
func (s Status) String() string { return strings.Join(s.fields(), "  ") }

// fit returns the line, shortened to a number of columns.
func (s Status) fit(columns int) string { return fit(s.fields(), columns) }

func (s Status) done() bool { return s.Step == s.Steps }

// Progress holds the values of a command over a known number of tokens or bytes that the
// status line shows.
type Progress struct {
	Done, All int64
	Unit      string // "tokens" or "B"
	Loss      *float64
	Elapsed   time.Duration
}

func (p Progress) fields() []string {
	rate := float64(p.Done) / p.Elapsed.Seconds()
	var fields []string
	speed := Quantity(rate, p.Unit+"/s")
	if p.Unit == "B" {
		fields = []string{fmt.Sprintf("%s of %s", Bytes(p.Done), Bytes(p.All))}
	} else {
		fields = []string{fmt.Sprintf("%s of %s %s", Count(p.Done), Count(p.All), p.Unit)}
		if speed = number(rate, "%.0f"); finite(rate) {
			speed = commas(speed)
		}
		speed += " tok/s"
	}
	if p.Loss != nil {
		fields = append(fields, "loss "+number(*p.Loss, "%.4f"))
	}
	if p.Done == 0 { // the rate is unknown
		return append(fields, "ETA -:--")
	}
	eta := time.Duration(float64(p.All-p.Done) / float64(p.Done) * float64(p.Elapsed))
	return append(fields, speed, "ETA "+Clock(eta))
}

// String returns the whole line.
func (p Progress) String() string { return strings.Join(p.fields(), "  ") }

func (p Progress) fit(columns int) string { return fit(p.fields(), columns) }

func (p Progress) done() bool { return p.Done == p.All }

// Shown is a value that a status line can show: a Status or a Progress.
type Shown interface {
	String() string         // the whole line
	fit(columns int) string // the line, shortened to a number of columns
	done() bool             // it is the last one, and shown at once
}

// fit joins fields to a line of at most a number of columns. It drops fields from the right,
// but keeps the ETA until only the first field is left with it.
func fit(fields []string, columns int) string {
	for len(fields) > 0 {
		line := strings.Join(fields, "  ")
		if len(line) <= columns { // ASCII: bytes are columns
			return line
		}
		drop := len(fields) - 2
		if drop < 1 { // the first field stays longest
			drop = len(fields) - 1
		}
		fields = slices.Delete(fields, drop, drop+1)
	}
	return ""
}

// Shortest intervals between lines: on a terminal, and in a file or a pipe.
const (
	redrawEvery = 100 * time.Millisecond
	plainEvery  = 10 * time.Second
)

// StatusLine shows the current step: on a terminal as one line that is overwritten and never
// wraps, elsewhere as plain lines at intervals. The first and the last step are always
// shown. Methods may be called from any goroutine.
type StatusLine struct {
	mu    sync.Mutex
	w     io.Writer
	width func() int // 0: not a terminal
	now   func() time.Time

	last    Shown
	shown   bool      // last has been written
	at      time.Time // time of the last write
	onLine  int       // width of the line on the terminal, in columns
	started bool
}

// NewStatusLine returns a status line on a writer, usually os.Stderr. It overwrites the line
// only if the writer is a terminal that supports carriage returns.
func NewStatusLine(w io.Writer) *StatusLine {
	// Query the width each time: the window may have changed.
	return &StatusLine{w: w, width: func() int { return Columns(w) }, now: time.Now}
}

// Show sets the status. It writes the status now or, if the last write is too recent, leaves
// it to a later call.
func (l *StatusLine) Show(s Shown) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last, l.shown = s, false
	every := redrawEvery
	if l.width() == 0 {
		every = plainEvery
	}
	if !l.started || s.done() || l.now().Sub(l.at) >= every {
		l.draw()
	}
	l.started = true
}

// Print writes lines of text above the status, broken between words on a terminal.
func (l *StatusLine) Print(text string) {
	l.PrintTo(l.w, Reflow(strings.TrimRight(text, "\n")+"\n", l.width()))
}

// PrintTo writes text, which ends with a newline, to another writer, which may be the same
// terminal, above the status.
func (l *StatusLine) PrintTo(w io.Writer, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.erase()
	_, _ = io.WriteString(w, text) // a closed output does not stop a run
	if l.width() > 0 && l.started {
		l.draw()
	}
}

// Done shows the last status and starts a new line on the terminal.
func (l *StatusLine) Done() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.started && !l.shown {
		l.draw()
	}
	if l.onLine > 0 {
		fmt.Fprintln(l.w)
		l.onLine = 0
	}
	l.started = false
}

// interruptEcho is what the terminal writes at the cursor when Ctrl-C is pressed.
const interruptEcho = "^C"

// draw writes the status. On a terminal it clears the rest of a longer line, or the echo of
// Ctrl-C after it, with spaces: every console supports them, unlike escape sequences. It
// leaves the cursor right after the line, where erase expects the next echo.
func (l *StatusLine) draw() {
	l.shown, l.at = true, l.now()
	width := l.width()
	if width == 0 {
		fmt.Fprintln(l.w, l.last)
		return
	}
	// The line leaves space for an echo, and leaves the last column free: writing to that
	// wraps on some consoles.
	line := l.last.fit(width - 1 - len(interruptEcho))
	rest := max(min(l.onLine+len(interruptEcho), width-1)-len(line), 0)
	fmt.Fprintf(l.w, "\r%s%s\r%s", line, strings.Repeat(" ", rest), line)
	l.onLine = len(line)
}

// erase clears the line on the terminal and the columns after it that an echo of Ctrl-C
// takes.
func (l *StatusLine) erase() {
	if width := l.width(); width > 0 {
		fmt.Fprintf(l.w, "\r%s\r", strings.Repeat(" ", min(l.onLine+len(interruptEcho), width-1)))
		l.onLine = 0
	}
}
