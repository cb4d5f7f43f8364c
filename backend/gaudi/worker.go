//go:build gaudi && cgo && linux

package gaudi

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"octet/backend"
	"octet/csrc/libsynapse"
)

// workerVariable makes a process a worker: this program, started once more, which
// serves one Gaudi to the process that started it and does nothing else. Its value
// is the module number, or -1 for any.
const workerVariable = "OCTET_GAUDI_WORKER"

// workerSocket is the file descriptor of the socket to the parent: the first that
// exec.Cmd.ExtraFiles gives.
const workerSocket = 3

// A worker comes to be before main: so every program that imports this package,
// the tests too, can be its own worker.
func init() {
	value, ok := os.LookupEnv(workerVariable)
	if !ok {
		return
	}
	if err := work(value); err != nil {
		fmt.Fprintf(os.Stderr, "octet: worker for a Gaudi: %v\n", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func work(value string) error {
	module, err := strconv.Atoi(value)
	if err != nil {
		return fmt.Errorf("%s = %q is no module number; the variable is for the processes that octet starts itself", workerVariable, value)
	}
	// Whoever ends a job tells all its processes, and the parent has a step to finish:
	// it ends the workers, or takes them along.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	f := os.NewFile(workerSocket, "parent")
	conn, err := net.FileConn(f)
	if err != nil {
		return fmt.Errorf("%s is set, but there is no socket to a parent: %w", workerVariable, err)
	}
	if err := errors.Join(f.Close(), os.Unsetenv(workerVariable)); err != nil {
		return err
	}
	limit, err := backend.Patience(timeoutVariable)
	if err != nil {
		return refuse(conn, err)
	}
	s, err := openLocal(module)
	if err != nil {
		return refuse(conn, err)
	}
	o := owner{s.(*local), make(chan struct{}, 1), make(chan struct{})}
	go o.watch()
	return serve(conn, o, watch{
		ran:   o.ran,
		gone:  func() { os.Exit(0) }, // there is nothing to finish then, and the device may hang
		limit: limit,
		late: func() error {
			return fmt.Errorf("%w: waited %v for its device or for other ranks; its last collective is %s (%s gives more time)", backend.ErrDeviceLost, limit, o.lastMeeting(), timeoutVariable)
		},
	})
}

const (
	timeoutVariable = "OCTET_HCCL_TIMEOUT"
	// silence is how much longer a process may take to say that it waited in vain.
	silence = 2 * time.Second
)

// owner is a device that ends with its use, and for which somebody waits after each
// run: the ranks that nobody reads from take part in collectives, too.
type owner struct {
	*local
	ahead chan struct{}
	done  chan struct{} // closed when nobody waits any more
}

func (o owner) ran() {
	select {
	case o.ahead <- struct{}{}:
	default: // who waits next waits for this run, too
	}
}

func (o owner) watch() {
	defer close(o.done)
	for range o.ahead {
		_ = o.stream.Synchronize() // an error comes again with the next call
	}
}

func (o owner) release() error {
	if o.lost.Load() {
		return nil // the teardown might hang; the end of the process does it
	}
	close(o.ahead)
	<-o.done
	return o.close()
}

// workers are the processes that have the devices of the ranks, which live and die
// together: a rank alone would wait for the others for ever.
type workers struct {
	list  []*worker
	limit time.Duration // for a call

	mu      sync.Mutex
	open    int   // ranks that were not closed
	failure error // why they died, the first of them
	leaving bool  // each ends when it is ready

	dead chan struct{} // closed with failure
}

type worker struct {
	rank   int
	cmd    *exec.Cmd
	conn   net.Conn
	ended  chan struct{} // closed when the process has
	remote *remote
}

// startWorkers starts a process for each rank, with the devices from a module
// number on, or any with -1, and makes them a group.
func startWorkers(module, ranks int) (*workers, error) {
	limit, err := backend.Patience(timeoutVariable)
	if err != nil {
		return nil, err
	}
	w := &workers{open: ranks, limit: limit, dead: make(chan struct{})}
	for rank := range ranks {
		of := module
		if module >= 0 {
			of += rank
		}
		one, err := w.start(rank, of)
		if err != nil {
			w.end()
			return nil, fmt.Errorf("start the process for rank %d: %w", rank, err)
		}
		w.mu.Lock() // one that has ended already ends those of the list
		w.list = append(w.list, one)
		w.mu.Unlock()
	}
	if err := w.meet(); err != nil {
		w.end()
		return nil, err
	}
	return w, nil
}

// meet opens the devices, and a group of all ranks.
func (w *workers) meet() error {
	err := w.each(func(o *worker) (err error) {
		o.remote, err = w.dial(o)
		return err
	})
	if err != nil {
		return err
	}
	id, err := w.list[0].remote.uniqueID()
	if err != nil {
		return fmt.Errorf("name a group of ranks: %w; %s", err, hintNetwork)
	}
	err = w.each(func(o *worker) error { return o.remote.join(id, len(w.list), o.rank) })
	if err != nil {
		return fmt.Errorf("%w; %s", err, hintNetwork)
	}
	return nil
}

func (w *workers) dial(o *worker) (*remote, error) {
	limit := w.limit + silence
	r, err := dial(o.conn, func(err error) error { return w.explain(o, err) }, w.close, limit, func() {
		w.kill(fmt.Errorf("%w: the process of rank %d does not answer for %v (%s gives more time)", backend.ErrDeviceLost, o.rank, limit, timeoutVariable))
	})
	r.left = func(why error) {
		w.kill(fmt.Errorf("%w: rank %d left the group: %w", backend.ErrDeviceLost, o.rank, why))
	}
	return r, err
}

// each does something for all ranks at once. The first failure ends the others,
// which may be waiting for the one that failed.
func (w *workers) each(do func(*worker) error) error {
	var g errgroup.Group
	for _, o := range w.list {
		g.Go(func() error {
			err := do(o)
			if err != nil {
				err = fmt.Errorf("rank %d: %w", o.rank, err)
				w.kill(err)
			}
			return err
		})
	}
	_ = g.Wait() // the first in time tells more than the first in the list
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failure
}

func (w *workers) start(rank, module int) (*worker, error) {
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(ends[0]), "worker"), os.NewFile(uintptr(ends[1]), "parent")
	defer ours.Close()
	defer theirs.Close()
	o := &worker{rank: rank, ended: make(chan struct{})}
	// This program, also when its file has been replaced since; the arguments are for
	// who lists processes.
	o.cmd = &exec.Cmd{Path: "/proc/self/exe", Args: []string{os.Args[0], "(Gaudi of rank " + strconv.Itoa(rank) + ")"}}
	if o.conn, err = net.FileConn(ours); err != nil {
		return nil, err
	}
	o.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", workerVariable, module))
	o.cmd.ExtraFiles = []*os.File{theirs}
	o.cmd.Stdout, o.cmd.Stderr = os.Stderr, os.Stderr // what the vendor's libraries print
	// It ends with this process, even one that is killed. A group of its own keeps
	// it from the terminal's Ctrl-C, after which this process has a step to finish.
	o.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error)
	go func() {
		// Linux means by the parent the thread that started the process, which
		// therefore must not end before.
		runtime.LockOSThread()
		err := o.cmd.Start()
		started <- err
		if err == nil {
			w.died(o, o.cmd.Wait())
		}
	}()
	if err := <-started; err != nil {
		return nil, errors.Join(err, o.conn.Close())
	}
	return o, nil
}

// died notes the end of a worker, which is that of all, and of the calls that wait
// for one of them.
func (w *workers) died(o *worker, err error) {
	defer close(o.ended)
	w.mu.Lock()
	expected := err == nil && w.leaving
	w.mu.Unlock()
	if expected {
		return
	}
	if err == nil {
		err = errors.New("it ended by itself")
	}
	w.kill(fmt.Errorf("%w: the process of rank %d has ended: %w", backend.ErrDeviceLost, o.rank, err))
}

// kill ends all workers because of an error, of which the first counts.
func (w *workers) kill(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failure == nil && cause != nil {
		w.failure = cause
		close(w.dead)
	}
	for _, o := range w.list {
		_ = o.cmd.Process.Kill() // it may have ended
		_ = o.conn.Close()
	}
}

// end kills all workers and waits until their devices are free, unless a driver holds
// a process back.
func (w *workers) end() {
	w.kill(nil)
	limit := time.After(patience)
	for _, o := range w.list {
		select {
		case <-o.ended:
		case <-limit:
			return
		}
	}
}

// explain is the error of a rank whose process does not answer, or whose device fails,
// which may be because another rank's process has ended: that comes to be known a
// moment later.
func (w *workers) explain(o *worker, err error) error {
	if f, answered := errors.AsType[*failure](err); answered {
		select {
		case <-w.dead:
		case <-time.After(200 * time.Millisecond):
			switch {
			case errors.Is(f, backend.ErrDeviceLost):
				w.kill(fmt.Errorf("rank %d: %w", o.rank, f))
			case breaks(f.Cause):
				w.kill(fmt.Errorf("%w: rank %d: %w", backend.ErrDeviceLost, o.rank, err))
			default:
				return err
			}
		}
	} else {
		_ = o.conn.Close()
		select {
		case <-o.ended:
		case <-w.dead: // a driver may hold back a process that was killed
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return cmp.Or(w.failure, err)
}

// breaks tells whether other ranks may wait for ever for the one with this error.
func breaks(e *libsynapse.Error) bool {
	return e.DeviceLost() || e.Name() == "synFailHccl" || strings.HasPrefix(e.Call, "hccl")
}

// patience is how long a process may take to give its device back.
const patience = 10 * time.Second

// close is called by each rank. After the last of them the devices are given back,
// all at once since the ranks leave their group together, and the processes end.
func (w *workers) close() error {
	w.mu.Lock()
	w.open--
	w.leaving = w.open == 0
	leaving, dead := w.leaving, w.failure != nil
	w.mu.Unlock()
	if !leaving {
		return nil
	}
	var g errgroup.Group
	for _, o := range w.list {
		g.Go(func() error {
			late := time.AfterFunc(patience, func() {
				w.kill(fmt.Errorf("the process of rank %d did not give its device back within %v", o.rank, patience))
			})
			defer late.Stop()
			var err error
			if !dead {
				err = o.remote.do(request{Method: methodRelease})
			}
			_ = o.conn.Close() // which ends the process
			select {
			case <-o.ended:
				return err
			case <-time.After(patience):
				return errors.Join(err, fmt.Errorf("the process %d of rank %d does not end", o.cmd.Process.Pid, o.rank))
			}
		})
	}
	return g.Wait()
}
