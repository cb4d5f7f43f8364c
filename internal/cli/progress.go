package cli

import (
	"sync"
	"time"

	"octet/internal/writers"
)

// progressAfter is how long a command may run before a status line shows its progress.
var progressAfter = 2 * time.Second

// progress shows the progress of a long command on standard error. A timer shows the first
// line, even if the command has reported nothing yet. Methods may be called from any
// goroutine.
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
	p.timer = time.AfterFunc(progressAfter, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.show()
	})
	return p
}

// set records the amount done and the mean loss; nil if there is no loss.
func (p *progress) set(done int64, loss *float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last.Done, p.last.Loss = done, loss
	p.show()
}

// setOf records the amount done and the whole amount.
func (p *progress) setOf(done, all int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last.Done, p.last.All = done, all
	p.show()
}

// show draws the line if the command has run for progressAfter; the caller holds mu.
func (p *progress) show() {
	if p.last.Elapsed = time.Since(p.start); p.last.Elapsed >= progressAfter && !p.closed {
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
