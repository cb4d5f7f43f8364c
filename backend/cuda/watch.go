//go:build cuda && cgo && linux

package cuda

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"octet/backend/world"
)

// Two goroutines watch a group while a rank waits. One polls every rank's device and
// communicator for errors, with driver calls that may hang. The other counts how long
// each wait has lasted, without such calls.
//
// A wait that exceeds the group's timeout ends the group: NCCL's kernels are aborted, and
// the waits return. If a wait still does not return, it hangs in the driver: several
// ranks of one process can block each other there when libraries load kernels or connect
// GPUs for the first time. No call can end such a wait, so the process exits.

const (
	watchEvery = 200 * time.Millisecond
	closing    = "close the device" // the wait of a rank's Close
)

// wait is what a rank waits for, empty for nothing, and how many ticks watchDeadlines has
// counted. Ticks are counted, not time: a stopped process has none.
type wait struct {
	what string
	seen int
}

func (w wait) lasted() time.Duration { return time.Duration(w.seen) * watchEvery }

// grace is how much longer a wait may last after the group has ended: the stream still
// runs enqueued work, which may be several steps.
func (g *group) grace() time.Duration { return max(10*time.Second, g.timeout/10) }

func (g *group) watchDeadlines() {
	for range time.Tick(watchEvery) {
		open, hangs := g.tick()
		if hangs != nil {
			exit(hangs, g.beforeExit)
		}
		if !open {
			return
		}
	}
}

// tick adds one tick to every wait. It ends the group for a wait that exceeds the
// timeout, and returns the error to exit with if the wait continues past the grace.
func (g *group) tick() (open bool, hangs error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for rank := range g.waits {
		w := &g.waits[rank]
		if w.what == "" {
			continue
		}
		w.seen++
		if w.lasted() > g.timeout && g.ended == nil {
			g.end(rank, fmt.Errorf("%s: waited %v for its device or for other ranks; its last collective is %s (%s gives more time)",
				w.what, g.timeout, g.lastCollective(rank), world.TimeoutVariable))
		}
		if w.lasted() > g.timeout+g.grace() && hangs == nil {
			hangs = fmt.Errorf("cuda: rank %d: %s: hangs in the driver: it waited %v, and %v more after its collectives were aborted; its last collective is %s; "+
				"this process exits: resume from the last checkpoint with --resume (%s gives more time)",
				rank, w.what, g.timeout, g.grace(), g.lastCollective(rank), world.TimeoutVariable)
		}
	}
	return g.open > 0, hangs
}

// lastCollective returns the last collective that the rank's device has reached. The
// caller holds mu.
func (g *group) lastCollective(rank int) string {
	if d := g.ranks[rank]; d != nil {
		return d.lastCollective()
	}
	return "none"
}

// exit ends the process with status 1. os.Exit runs no atexit handlers of C; the driver's
// own would wait for the call that hangs.
func exit(reason error, before func(error)) {
	report(os.Stderr, reason, before)
	os.Exit(1)
}

// report writes the reason to stderr and passes it to before, which may be nil. It
// returns after at most one second: a pipe that nothing reads and a file system can each
// block a write, and neither write waits for the other.
func report(stderr io.Writer, reason error, before func(error)) {
	var writes sync.WaitGroup
	writes.Go(func() { fmt.Fprintf(stderr, "octet: %v\n", reason) })
	if before != nil {
		writes.Go(func() { before(reason) })
	}
	written := make(chan struct{})
	go func() {
		writes.Wait()
		close(written)
	}()
	select {
	case <-written:
	case <-time.After(time.Second):
	}
}

func (g *group) watchDevices() {
	for range time.Tick(watchEvery) {
		if g.err() != nil {
			return
		}
		if g.waiting() {
			g.pollAll()
		}
	}
}

func (g *group) waiting() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range g.waits {
		if w.what != "" {
			return true
		}
	}
	return false
}

// pollAll ends the group if a device or a communicator has an error.
func (g *group) pollAll() {
	g.polling.Lock()
	defer g.polling.Unlock()
	for rank := range g.calls {
		if d, _ := g.member(rank); d != nil {
			if err := d.poll(); err != nil {
				g.leave(rank, err)
				return
			}
		}
	}
}

// poll returns an error of a rank's communicator or device, without waiting for them.
func (d *device) poll() error {
	err := d.comm.Err()
	if err == nil && d.recording.TryLock() { // querying a captured stream would invalidate the graph
		_, err = d.stream.Idle()
		d.recording.Unlock()
	}
	if err == nil {
		return nil
	}
	d.group.mu.Lock()
	at := d.lastCollective()
	d.group.mu.Unlock()
	return d.failure("its last collective is "+at, 0, err)
}
