package run

import (
	"sync"
	"time"
)

const (
	tickEvery = time.Second
	// A goroutine that waits for a tick is late by milliseconds on a busy machine. If it is
	// later than this, the process did not run.
	longestTick = 5 * time.Second
)

// stopwatch measures the time in which this process runs, so that a pause, by Ctrl-Z or of
// the virtual machine, does not distort the pace of its steps. Sleep of the machine needs no
// care on Linux and macOS, whose monotonic clocks stop with it.
type stopwatch struct {
	start  time.Time
	ticker *time.Ticker
	end    chan struct{}

	mu     sync.Mutex
	last   time.Time // the last time at which the process ran
	paused time.Duration
}

func startWatch() *stopwatch {
	now := time.Now()
	s := &stopwatch{start: now, last: now, ticker: time.NewTicker(tickEvery), end: make(chan struct{})}
	go s.watch(s.ticker.C)
	return s
}

func (s *stopwatch) watch(ticks <-chan time.Time) {
	for {
		select {
		case <-s.end:
			return
		case now := <-ticks:
			s.at(now)
		}
	}
}

// at returns the running time at a moment at which the process runs.
func (s *stopwatch) at(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if gap := now.Sub(s.last); gap > longestTick {
		s.paused += gap - tickEvery
	}
	if now.After(s.last) { // a tick may be older than a concurrent call
		s.last = now
	}
	return now.Sub(s.start) - s.paused
}

func (s *stopwatch) stop() {
	s.ticker.Stop()
	close(s.end)
}
