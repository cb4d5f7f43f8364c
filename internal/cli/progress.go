package cli

import (
	"sync"
	"time"

	"octet/internal/writers"
)

// silentFor is how long a command may run before a status line shows its progress.
var silentFor = 2 * time.Second

// progress shows on standard error how far a long command is. A timer shows the first
// line, even if the command has reported nothing by then. Methods may be called from
// any goroutine.
type progress struct {
	start time.Time
	timer *time.Timer
	line  *writers.StatusLine

	mu     sync.Mutex
	last   writers.Progress
	closed bool
}

// startProgress begins to measure the time of a command that handles all tokens or
// bytes; unit is that of [writers.Progress].
func (t *terminal) startProgress(all int64, unit string) *progress {
	p := &progress{start: time.Now(), line: writers.NewStatusLine(t.err), last: writers.Progress{All: all, Unit: unit}}
	p.mu.Lock() // until timer is set
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(silentFor, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.show()
	})
	return p
}

// set reports how much is done, and the mean loss, or nil where there is none.
func (p *progress) set(done int64, loss *float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last.Done, p.last.Loss = done, loss
	p.show()
}

// show draws the line if the command runs for long; the caller holds mu.
func (p *progress) show() {
	if p.last.Elapsed = time.Since(p.start); p.last.Elapsed >= silentFor && !p.closed {
		p.line.Show(p.last)
	}
}

// close ends the line. Nothing is written to standard error afterwards.
func (p *progress) close() {
	p.timer.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.line.Done()
}
