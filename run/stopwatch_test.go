package run

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The stopwatch does not count an hour in which the process did not run, but counts ticks
// that are late on a busy machine.
func TestStopwatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startWatch()
		defer s.stop()
		time.Sleep(time.Hour)
		require.Equal(t, time.Hour, s.at(time.Now()))
	})
	ticks, start := make(chan time.Time), time.Now()
	s := &stopwatch{start: start, last: start, end: make(chan struct{})}
	done := make(chan struct{})
	go func() { s.watch(ticks); close(done) }()
	for _, at := range []time.Duration{time.Second, 2 * time.Second, 6 * time.Second, time.Hour + 6*time.Second, time.Hour + 7*time.Second} {
		ticks <- start.Add(at)
	}
	close(s.end)
	<-done
	require.Equal(t, 9*time.Second, s.at(start.Add(time.Hour+8*time.Second)))
	require.Equal(t, 10*time.Second, s.at(start.Add(2*time.Hour)), "read before the first tick after a pause")
	s.at(start.Add(time.Hour)) // a tick from before the pause
	require.Equal(t, 11*time.Second, s.at(start.Add(2*time.Hour+time.Second)))
}
