package writers

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var someStatus = Status{
	Step: 120, Steps: 400, Loss: 2.43119, GradNorm: 0.83, LR: 2.7e-3,
	TokensPerSec: 18204.4, FlopsPerSec: 71.2e9, Memory: 31_400_000, ETA: new(42 * time.Second),
}

func TestStatusString(t *testing.T) {
	require.Equal(t, "step 120/400  loss 2.4312  |g| 0.830  lr 2.7e-03  18,204 tok/s  71 GFLOP/s  31 MB  ETA 0:42", someStatus.String())
	s := someStatus
	s.MFU = new(0.344)
	require.Contains(t, s.String(), "71 GFLOP/s  mfu 34%  31 MB")
	for norm, want := range map[float64]string{1: "1.00", 0.979: "0.979", 99.96: "100", 123456: "1.23e+05"} {
		s.GradNorm = norm
		require.Contains(t, s.String(), "  |g| "+want+"  ")
	}
	s = Status{Loss: math.NaN(), GradNorm: math.Inf(1), TokensPerSec: math.Inf(1), FlopsPerSec: math.NaN()}
	require.Equal(t, "step 0/0  loss nan  |g| inf  lr 0.0e+00  inf tok/s  nan FLOP/s  0 B  ETA -:--", s.String())
}

func TestStatusFit(t *testing.T) {
	for columns, want := range map[int]string{
		1000: someStatus.String(),
		91:   "step 120/400  loss 2.4312  |g| 0.830  lr 2.7e-03  18,204 tok/s  71 GFLOP/s  31 MB  ETA 0:42",
		90:   "step 120/400  loss 2.4312  |g| 0.830  lr 2.7e-03  18,204 tok/s  71 GFLOP/s  ETA 0:42",
		80:   "step 120/400  loss 2.4312  |g| 0.830  lr 2.7e-03  18,204 tok/s  ETA 0:42",
		40:   "step 120/400  loss 2.4312  ETA 0:42",
		34:   "step 120/400  ETA 0:42",
		21:   "step 120/400",
		11:   "",
		-1:   "",
	} {
		require.Equal(t, want, someStatus.fit(columns), columns)
	}
}

// The readings of a device come last, and are dropped first.
func TestStatusOfADevice(t *testing.T) {
	s := someStatus
	s.Utilization, s.Power, s.Temperature = new(0.974), new(612.3), new(61.0)
	const line = "step 120/400  loss 2.4312  |g| 0.830  lr 2.7e-03  18,204 tok/s  71 GFLOP/s  31 MB"
	for columns, want := range map[int]string{
		114: line + "  97% busy  612 W  61 C  ETA 0:42",
		113: line + "  97% busy  612 W  ETA 0:42",
		107: line + "  97% busy  ETA 0:42",
		100: line + "  ETA 0:42",
	} {
		require.Equal(t, want, s.fit(columns), columns)
	}
	s.Utilization, s.Power, s.Temperature = new(0.0), new(5600.0), nil
	require.Equal(t, line+"  0% busy  5.6 kW  ETA 0:42", s.String())
}

// screen returns the lines that a terminal would show.
func screen(t *testing.T, written string, width int) []string {
	t.Helper()
	var lines []string
	for _, line := range strings.Split(written, "\n") {
		cells, at := []byte(strings.Repeat(" ", width)), 0
		for _, c := range []byte(line) {
			if c == '\r' {
				at = 0
				continue
			}
			require.Less(t, at, width, "wraps: %q", line)
			cells[at] = c
			at++
		}
		lines = append(lines, strings.TrimRight(string(cells), " "))
	}
	return lines
}

type clock struct{ time.Time }

func newTestLine(width int) (*StatusLine, *bytes.Buffer, *clock) {
	var out bytes.Buffer
	c := &clock{time.Unix(1000, 0)}
	return &StatusLine{w: &out, width: func() int { return width }, now: func() time.Time { return c.Time }}, &out, c
}

func TestStatusLineOnTerminal(t *testing.T) {
	for _, width := range []int{1, 12, 14, 15, 80, 200} {
		l, out, c := newTestLine(width)
		long, short := someStatus, someStatus
		long.Loss = -123456.5
		l.Show(long)
		c.Time = c.Add(time.Second)
		l.Show(short)
		require.Equal(t, []string{short.fit(width - 3)}, screen(t, out.String(), width), "the longer line is cleared")
		c.Time = c.Add(time.Millisecond)
		n := out.Len()
		l.Show(long)
		require.Equal(t, n, out.Len(), "too soon to redraw")
		l.Done()
		require.Equal(t, long.fit(width-3), screen(t, out.String(), width)[0], "the last status is shown in the end")
	}
}

// The echo of Ctrl-C is cleared at any cursor position, and so is the status.
func TestStatusLineEcho(t *testing.T) {
	long, short := someStatus, someStatus
	long.Loss = -123456.5
	for width := 3; width < 120; width++ {
		for _, shown := range [][]Status{{short}, {long}, {long, short}, {short, long}} {
			for _, redrawn := range []bool{false, true} {
				l, out, c := newTestLine(width)
				show := func(s Status) {
					l.Show(s)
					c.Time = c.Add(time.Second)
				}
				for _, s := range shown {
					show(s)
				}
				out.WriteString("^C")
				if redrawn {
					show(short)
				}
				l.PrintTo(l.w, "~\n")
				l.Done()
				last := shown[len(shown)-1]
				if redrawn {
					last = short
				}
				require.Equal(t, []string{"~", last.fit(width - 3), ""}[:2], screen(t, out.String(), width)[:2], width)
			}
		}
	}
}

func TestReflow(t *testing.T) {
	for _, c := range []struct {
		columns    int
		text, want string
	}{
		{0, "some words\n", "some words\n"},
		{9, "  ✗ cuda: not here\n", "  ✗ cuda:\n    not\n    here\n"},
		{10, "some words\n\nend", "some words\n\nend"},
		{9, "some words\n", "some\nwords\n"},
		{20, "data    12 tokens of the text\n", "data    12 tokens of\n        the text\n"},
		{12, "data      1 token\n", "data      1\ntoken\n"},
		{12, "    norms 896, head\n", "    norms\n    896,\n    head\n"},
		{8, "a very-long-word here", "a\nvery-long-word\nhere"},
		{8, "very-long-word", "very-long-word"},
		{7, "größere Wörter", "größere\nWörter"},
		{4, "end  ", "end  "},
	} {
		require.Equal(t, c.want, Reflow(c.text, c.columns), c.text)
	}
}

func TestStatusLinePrint(t *testing.T) {
	l, out, c := newTestLine(80)
	out.WriteString("^C") // the terminal's answer to Ctrl-C, before there is a status
	l.Print("~")
	l.Print("before")
	l.Show(someStatus)
	l.Print("step 100: val loss 2.5\n")
	c.Time = c.Add(time.Second)
	l.Show(someStatus)
	l.Done()
	l.Print("after")
	require.Equal(t, []string{"~", "before", "step 100: val loss 2.5", someStatus.fit(77), "after", ""}, screen(t, out.String(), 80))
}

// PrintTo clears the status before it writes, and restores it afterwards.
func TestStatusLinePrintTo(t *testing.T) {
	l, out, _ := newTestLine(80)
	l.Show(someStatus)
	l.PrintTo(writerFunc(func(p []byte) (int, error) {
		require.Equal(t, []string{""}, screen(t, out.String(), 80))
		return out.Write(p)
	}), "a table\n\n")
	require.Equal(t, []string{"a table", "", someStatus.fit(77)}, screen(t, out.String(), 80))
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// A window that shrinks between two lines must not make the next one wrap.
func TestStatusLineShrinks(t *testing.T) {
	l, out, c := newTestLine(200)
	l.Show(someStatus)
	out.Reset()
	l.width = func() int { return 30 }
	c.Time = c.Add(time.Second)
	l.Show(someStatus)
	require.Equal(t, []string{someStatus.fit(27)}, screen(t, out.String(), 30))
}

func TestStatusLinePlain(t *testing.T) {
	l, out, c := newTestLine(0)
	steps := func(from, to int, each time.Duration) {
		for s := from; s <= to; s++ {
			l.Show(Status{Step: s, Steps: 100})
			c.Time = c.Add(each)
		}
	}
	steps(1, 25, time.Second)
	l.Print("a note")
	steps(26, 100, time.Millisecond)
	require.Contains(t, out.String(), "100/100", "shown before Done: the last evaluation may take a while")
	l.Done()
	var shown []string
	for line := range strings.Lines(out.String()) {
		require.NotContains(t, line, "\r")
		shown = append(shown, strings.Fields(line)[1])
	}
	require.Equal(t, []string{"1/100", "11/100", "21/100", "note", "100/100"}, shown)

	// A run that stops early still shows where.
	l, out, _ = newTestLine(0)
	l.Show(Status{Step: 1, Steps: 100})
	l.Show(Status{Step: 2, Steps: 100})
	l.Done()
	require.Equal(t, 2, strings.Count(out.String(), "\n"))
	l.Done()
	require.Equal(t, 2, strings.Count(out.String(), "\n"))
}

// A file is not a terminal.
func TestNewStatusLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stderr")
	f, err := os.Create(path)
	require.NoError(t, err)
	l := NewStatusLine(f)
	l.Show(someStatus)
	l.Done()
	require.NoError(t, f.Close())
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, someStatus.String()+"\n", string(text))
}

// Progress is shown like a step: at the end at once, and cut by whole fields.
func TestProgress(t *testing.T) {
	p := Progress{Done: 1_250_000, All: 4_000_000, Unit: "tokens", Loss: new(1.23456), Elapsed: 25 * time.Second}
	require.Equal(t, "1.25M of 4.00M tokens  loss 1.2346  50,000 tok/s  ETA 0:55", p.String())
	require.Equal(t, "1.25M of 4.00M tokens  loss 1.2346  ETA 0:55", p.fit(50))
	require.Equal(t, "1.25M of 4.00M tokens", p.fit(25))
	p.Loss, p.Elapsed = new(math.NaN()), 0
	require.Equal(t, "1.25M of 4.00M tokens  loss nan  inf tok/s  ETA 0:00", p.String())
	p.Loss, p.Done = nil, 0
	require.Equal(t, "0 of 4.00M tokens  ETA -:--", p.String())
	require.Equal(t, "12 GB of 782 GB  1.2 GB/s  ETA 10:42", Progress{Done: 12e9, All: 782e9, Unit: "B", Elapsed: 10 * time.Second}.String())
	var out bytes.Buffer
	l := NewStatusLine(&out)
	for p.Done = 1_000_000; p.Done <= p.All; p.Done += 1_000_000 {
		l.Show(p)
	}
	l.Done()
	require.Equal(t, []string{"1.00M of", "4.00M of"}, regexp.MustCompile(`(?m)^\S+ of`).FindAllString(out.String(), -1))
}
