package run

import (
	"sync"
	"time"
)

const (
	tickEvery = time.Second
	// A goroutine that waits for a tick is late by milliseconds on a busy machine.
	// Where it is later than this, nothing of the process ran.
	longestTick = 5 * time.Second
)

// stopwatch is the time in which this process runs. One that is stopped, by Ctrl-Z or
// with its virtual machine, must not think ever after that its steps take so long. A
// machine that sleeps is no trouble where the clock sleeps too, as on Linux and macOS.
type stopwatch struct {
	start  time.Time
	ticker *time.Ticker
	end    chan struct{}

	mu     sync.Mutex
	last   time.Time // that the process was seen to run
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

// at is what it shows at a moment, at which the process runs.
func (s *stopwatch) at(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if gap := now.Sub(s.last); gap > longestTick {
		s.paused += gap - tickEvery
	}
	if now.After(s.last) { // a tick may be older than who asked meanwhile
		s.last = now
	}
	return now.Sub(s.start) - s.paused
}

func (s *stopwatch) stop() {
	s.ticker.Stop()
	close(s.end)
}
