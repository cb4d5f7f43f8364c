// Package launch starts the ranks of a run on this machine, a process each, and ends them
// together. The processes find their place in the environment ([octet/backend/world.FromEnv]).
package launch

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"octet/backend/world"
)

// Options are the parameters of Run.
type Options struct {
	Ranks   int
	Command []string // the executable and its arguments
	// Out and Err are the streams of rank 0. The lines of other ranks go to Err after their
	// rank, as "[3] ".
	Out, Err io.Writer
	// Signals are passed on to all ranks. The third one that ends processes kills them.
	Signals <-chan os.Signal
	// Grace is how long ranks may take to end after one has failed, and again after SIGTERM; 0:
	// ten seconds.
	Grace time.Duration
}

// Run starts the ranks and returns the exit status of the run when all have ended: that of the
// lowest rank that failed by itself, or 128 and the signal's number if signals ended all that
// failed.
func Run(o Options) (status int, err error) {
	address, listener, err := world.Loopback()
	if err != nil {
		return 0, err
	}
	g := &group{Options: o, exits: make(chan exit, o.Ranks)}
	lines := &lineWriter{to: o.Err}
	for rank := range o.Ranks {
		c := exec.Command(o.Command[0], o.Command[1:]...)
		c.Env = append(os.Environ(), world.Environment(rank, o.Ranks, address)...)
		c.SysProcAttr = ofRank()
		c.Stdout, c.Stderr = o.Out, o.Err
		if rank > 0 {
			w := lines.of(rank)
			c.Stdout, c.Stderr = w, w
		} else if listener != nil {
			c.ExtraFiles = []*os.File{listener}
			c.Env = append(c.Env, world.InheritedListener)
		}
		if err = g.start(rank, c); err != nil {
			err = fmt.Errorf("rank %d could not be started: %w", rank, err)
			g.signal(os.Kill)
			break
		}
	}
	if listener != nil {
		err = errors.Join(err, listener.Close()) // rank 0 has it
	}
	return g.wait(), err
}

// group is the running ranks.
type group struct {
	Options
	running []*os.Process // by rank; nil for those that have ended
	exits   chan exit
}

type exit struct {
	rank, status int
	signal       syscall.Signal // that ended the process; 0: none
}

// start starts a rank from a thread of its own, which waits for it: on Linux the rank ends with
// the thread that started it.
func (g *group) start(rank int, c *exec.Cmd) error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := c.Start()
		started <- err
		if err != nil {
			return
		}
		_ = c.Wait() // the status says more
		e := exit{rank: rank, status: c.ProcessState.ExitCode()}
		if w, ok := c.ProcessState.Sys().(syscall.WaitStatus); ok && w.Signaled() {
			e.signal = w.Signal()
		}
		g.exits <- e
	}()
	if err := <-started; err != nil {
		return err
	}
	g.running = append(g.running, c.Process)
	return nil
}

// signal sends a signal to all ranks that run.
func (g *group) signal(s os.Signal) {
	for _, p := range g.running {
		if p != nil {
			_ = p.Signal(s) // it may have ended
		}
	}
}

// wait returns the status of the run when all ranks have ended.
func (g *group) wait() int {
	grace := cmp.Or(g.Grace, 10*time.Second)
	var failed, killed *exit
	var late <-chan time.Time
	next := []os.Signal{syscall.SIGTERM, os.Kill} // sent when late fires
	ending := 0
	for left := len(g.running); left > 0; {
		select {
		case e := <-g.exits:
			left--
			g.running[e.rank] = nil
			switch {
			case e.status == 0:
				continue
			case e.signal != 0 && (killed == nil || e.rank < killed.rank):
				killed = &e
			case e.signal == 0 && (failed == nil || e.rank < failed.rank):
				failed = &e
			}
			if late == nil {
				late = time.After(grace)
			}
		case s := <-g.Signals:
			if s == os.Interrupt || s == syscall.SIGTERM {
				ending++
			}
			if ending > 2 {
				s = os.Kill
			}
			g.signal(s)
		case <-late:
			if len(next) > 0 {
				g.signal(next[0])
				next, late = next[1:], time.After(grace)
			}
		}
	}
	switch {
	case failed != nil:
		return failed.status
	case killed != nil:
		return 128 + int(killed.signal)
	}
	return 0
}

// lineWriter writes the lines of several ranks.
type lineWriter struct {
	mu sync.Mutex
	to io.Writer
}

// of returns a writer that puts the rank before each line.
func (l *lineWriter) of(rank int) io.Writer {
	return &prefixed{l: l, prefix: fmt.Sprintf("[%d] ", rank)}
}

type prefixed struct {
	l      *lineWriter
	prefix string
	rest   []byte // of a line without its end
}

func (p *prefixed) Write(text []byte) (int, error) {
	p.rest = append(p.rest, text...)
	end := bytes.LastIndexByte(p.rest, '\n')
	if end < 0 {
		return len(text), nil
	}
	var out []byte
	for line := range bytes.Lines(p.rest[:end+1]) {
		out = append(append(out, p.prefix...), line...)
	}
	p.rest = append(p.rest[:0], p.rest[end+1:]...)
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	_, err := p.l.to.Write(out)
	return len(text), err
}
