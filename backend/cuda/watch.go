//go:build cuda && cgo && linux

package cuda

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// Two goroutines watch a group while a rank waits. One asks every rank's device and
// communicator for errors, which is a call of the driver and may hang with it. The other
// counts how long each wait has lasted, and makes no such call.
//
// A wait that is longer than the group's timeout ends the group: NCCL's kernels are told
// to end, and the waits return. A wait that does not return even then hangs in the driver:
// several ranks of one process can block each other there when libraries load kernels or
// connect GPUs for the first time. No call can end such a wait, so the process ends itself.

const (
	watchEvery = 200 * time.Millisecond
	closing    = "close the device" // the wait of a rank's Close
)

// wait is what a rank waits for, and how many ticks the watcher has seen it wait; no name:
// for nothing. Ticks are counted because a stopped process has none.
type wait struct {
	what string
	seen int
}

func (w wait) lasted() time.Duration { return time.Duration(w.seen) * watchEvery }

// grace is how much longer a wait may last once the group was told to end: the stream
// still runs what it was given, which may be some steps.
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

// tick counts one more tick of every wait. It ends the group for a wait that is too long,
// and returns the error to exit with where that did not end the wait.
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
				w.what, g.timeout, g.lastCollective(rank), timeoutVariable))
		}
		if w.lasted() > g.timeout+g.grace() && hangs == nil {
			hangs = fmt.Errorf("cuda: rank %d: %s: hangs in the driver: it waited %v, and %v more after its collectives were told to end; its last collective is %s; "+
				"this process ends: resume from the last checkpoint with --resume (%s gives more time)",
				rank, w.what, g.timeout, g.grace(), g.lastCollective(rank), timeoutVariable)
		}
	}
	return g.open > 0, hangs
}

// lastCollective is what the rank's device has come to. It is called with mu held.
func (g *group) lastCollective(rank int) string {
	if d := g.ranks[rank]; d != nil {
		return d.where()
	}
	return "nothing"
}

// exit ends the process with status 1. os.Exit runs no handler of C, where the driver's
// own would wait for the call that hangs.
func exit(reason error, before func(error)) {
	report(os.Stderr, reason, before)
	os.Exit(1)
}

// report writes the reason to stderr and passes it to before, which may be nil. It returns
// after one second at the latest: a pipe that nothing reads and a file system can each
// block its own write, and neither write waits for the other.
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
		if g.over() != nil {
			return
		}
		if g.waiting() {
			g.askAll()
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

// askAll ends the group if a device or a communicator has an error.
func (g *group) askAll() {
	g.asking.Lock()
	defer g.asking.Unlock()
	for rank := range g.calls {
		if d, _ := g.member(rank); d != nil {
			if err := d.ask(); err != nil {
				g.leave(rank, err)
				return
			}
		}
	}
}

// ask is what a rank's communicator and device have to say, without waiting for
// them.
func (d *device) ask() error {
	err := d.comm.Err()
	if err == nil && d.recording.TryLock() { // asking a stream that is captured would spoil the graph
		_, err = d.stream.Idle()
		d.recording.Unlock()
	}
	if err == nil {
		return nil
	}
	d.group.mu.Lock()
	at := d.where()
	d.group.mu.Unlock()
	return d.failure("its last collective is "+at, 0, err)
}
