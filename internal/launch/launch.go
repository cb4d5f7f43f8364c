// Package launch starts the ranks of a run on this machine, a process each, and ends them
// together. The processes find their place in the environment ([octet/backend/world.FromEnv]).
package launch

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
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

// Run starts the ranks and returns the exit status of the run when all have ended: that of rank 0,
// or of the rank that was the first to fail by itself. If a signal ended the ranks that failed,
// the status is CodeFailed, or 128 and the signal's number if Run passed that signal on.
func Run(o Options) (status int, err error) {
	address, listener, err := world.Loopback()
	if err != nil {
		return 0, err
	}
	g := &group{Options: o, exits: make(chan exit, o.Ranks)}
	g.lines = newLines(o.Err)
	for rank := range o.Ranks {
		c := exec.Command(o.Command[0], o.Command[1:]...)
		c.Env = append(os.Environ(), world.Environment(rank, o.Ranks, address)...)
		c.SysProcAttr = ofRank()
		c.Stdout, c.Stderr = o.Out, o.Err
		if rank > 0 {
			w := &prefixed{to: g.lines, prefix: fmt.Sprintf("[%d] ", rank)}
			c.Stdout, c.Stderr = w, w
		} else if _, direct := o.Err.(*os.File); !direct {
			c.Stderr = g.lines
		}
		if rank == 0 && listener != nil {
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
	lines   *lines
	passed  syscall.Signal // the last one of Signals
}

type exit struct {
	rank, process, status int
	signal                syscall.Signal // that ended the process; 0: none
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
		if p, ok := c.Stderr.(*prefixed); ok {
			p.flush()
		}
		e := exit{rank: rank, process: c.Process.Pid, status: c.ProcessState.ExitCode()}
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
	var v verdict
	var late <-chan time.Time
	next := []os.Signal{syscall.SIGTERM, os.Kill} // sent when late fires
	stops := 0
	for left := len(g.running); left > 0; {
		select {
		case e := <-g.exits:
			left--
			g.running[e.rank] = nil
			if e.status == 0 {
				continue
			}
			if len(next) == 2 { // what follows SIGTERM says nothing about the run
				g.judge(&v, e)
			}
			if late == nil {
				late = time.After(grace)
			}
		case s := <-g.Signals:
			g.passed, _ = s.(syscall.Signal)
			if s == os.Interrupt || s == syscall.SIGTERM {
				stops++
			}
			if stops > 2 {
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
	return cmp.Or(v.first, v.other, v.killed)
}

// verdict is the status of the run, as far as ranks have failed; 0: none.
type verdict struct {
	first  int // of rank 0
	other  int // of the rank that was the first to fail by itself
	killed int // of the rank that was the first to be killed
}

// judge records how a rank failed. It prints which rank a signal has ended, unless Run passed
// that signal on.
func (g *group) judge(v *verdict, e exit) {
	switch {
	case e.signal != 0 && e.signal == g.passed:
		v.killed = cmp.Or(v.killed, 128+int(e.signal))
	case e.signal != 0:
		g.lines.line(fmt.Sprintf("[%d] ", e.rank), fmt.Appendf(nil, "process %d was ended by a signal: %v", e.process, e.signal))
		v.killed = cmp.Or(v.killed, world.CodeFailed)
	default:
		if e.rank == 0 {
			v.first = e.status
		}
		v.other = cmp.Or(v.other, e.status)
	}
}
