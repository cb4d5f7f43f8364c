//go:build cuda && cgo && linux

package cuda

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
)

// A stderr that blocks delays neither the entry in run.log nor the exit, and neither does
// a run.log that blocks.
func TestReportOfAHangIsBounded(t *testing.T) {
	reason := errors.New("rank 1 hangs")
	read, stderr := io.Pipe() // a write blocks until it is read
	defer read.Close()
	logged := make(chan error, 1)
	report(stderr, reason, func(err error) { logged <- err })
	require.Equal(t, reason, <-logged)

	read, stderr = io.Pipe()
	blocked := make(chan struct{})
	defer close(blocked)
	line := make(chan string, 1)
	go func() {
		text := make([]byte, 100)
		n, _ := read.Read(text)
		line <- string(text[:n])
	}()
	report(stderr, reason, func(error) { <-blocked })
	require.Equal(t, "octet: rank 1 hangs\n", <-line)
}

// tick ends the group for a wait longer than its timeout, returns the error to exit with
// after the grace, and stops once no rank is open.
func TestTick(t *testing.T) {
	const (
		timeout = time.Minute
		grace   = 10 * time.Second
	)
	ticks := func(d time.Duration) int { return int(d / watchEvery) }
	for name, c := range map[string]struct {
		wait         wait // of rank 1, before the tick
		open         int
		ended, hangs string
	}{
		"no wait":               {wait{}, 2, "", ""},
		"a wait of the timeout": {wait{"allocate temps", ticks(timeout) - 1}, 2, "", ""},
		"a wait that is longer": {
			wait{"allocate temps", ticks(timeout)},
			2,
			"cuda: device lost: rank 1 left the group: allocate temps: waited 1m0s for its device or for other ranks; " +
				"its last collective is none (OCTET_TIMEOUT gives more time)", "",
		},
		"a wait of timeout and grace": {wait{"allocate temps", ticks(timeout+grace) - 1}, 2, "rank 1 left the group: allocate temps: waited 1m0s", ""},
		"a wait past the grace": {
			wait{"allocate temps", ticks(timeout + grace)},
			2, "rank 1 left the group: allocate temps: waited 1m0s",
			"cuda: rank 1: allocate temps: hangs in the driver: it waited 1m0s, and 10s more after its collectives were aborted; " +
				"its last collective is none; this process exits: resume from the last checkpoint with --resume (OCTET_TIMEOUT gives more time)",
		},
		"no rank is open": {wait{}, 0, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := &group{timeout: timeout, ranks: make([]*device, 2), waits: []wait{{}, c.wait}, open: 2, released: make(chan struct{})}
			require.Equal(t, grace, g.grace())
			if c.open == 0 {
				g.dissolve()
			}
			open, hangs := g.tick()
			require.Equal(t, c.open > 0, open)
			if c.ended == "" {
				require.NoError(t, g.err())
			} else {
				require.ErrorIs(t, g.err(), backend.ErrDeviceLost)
				require.ErrorContains(t, g.err(), c.ended)
			}
			if c.hangs == "" {
				require.NoError(t, hangs)
			} else {
				require.EqualError(t, hangs, c.hangs)
			}
			if c.wait.what == "" {
				require.Zero(t, g.waits[1].seen, "no ticks without a wait")
			} else {
				require.Equal(t, c.wait.seen+1, g.waits[1].seen)
			}
		})
	}
}
