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
	"octet/backend/world"
	"octet/csrc/libsynapse"
)

// workerVariable makes a process a worker: this program started again, which only serves
// one Gaudi to its parent process. Its value is the module number, or -1 for any device.
const workerVariable = "OCTET_GAUDI_WORKER"

// workerSocket is the file descriptor of the socket to the parent: the first of
// exec.Cmd.ExtraFiles.
const workerSocket = 3

// canServe reports whether RunWorker was called: only then does this program, started
// again, become a worker.
var canServe bool

// RunWorker serves a Gaudi to a parent process and then exits, if that parent started this
// process as a worker; otherwise it returns at once. Several ranks need a worker process
// each, which is this program started again: a program that opens several ranks calls
// RunWorker at the start of main.
func RunWorker() {
	canServe = true
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
		return fmt.Errorf("%s = %q is not a module number; octet sets this variable itself for its worker processes", workerVariable, value)
	}
	// A signal to the job reaches all its processes, but the parent first finishes its
	// step: it ends the workers, or they end with it.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	f := os.NewFile(workerSocket, "parent")
	conn, err := net.FileConn(f)
	if err != nil {
		return fmt.Errorf("%s is set, but there is no socket to a parent process: %w", workerVariable, err)
	}
	if err := errors.Join(f.Close(), os.Unsetenv(workerVariable)); err != nil {
		return err
	}
	limit, err := world.Timeout()
	if err != nil {
		return refuse(conn, err)
	}
	s, err := openLocal(module)
	if err != nil {
		return refuse(conn, err)
	}
	o := workerDevice{s.(*local), make(chan struct{}, 1), make(chan struct{})}
	go o.watch()
	return serve(conn, o, serveHooks{
		afterRun:     o.ran,
		disconnected: func() { os.Exit(0) }, // no work is left, and the device may hang
		limit:        limit,
		timedOut: func() error {
			return fmt.Errorf("%w: waited %v for its device or for other ranks; its last collective is %s (%s sets a longer timeout)", backend.ErrDeviceLost, limit, o.lastCollective(), world.TimeoutVariable)
		},
	})
}

const (
	// answerGrace is how much longer than its timeout a worker may take to report the
	// timeout.
	answerGrace = 2 * time.Second
)

// workerDevice is a worker's device, which is closed on release. It waits for the device
// after each run, because ranks that are never read from also take part in collectives.
type workerDevice struct {
	*local
	runs chan struct{}
	done chan struct{} // closed when watch returns
}

func (o workerDevice) ran() {
	select {
	case o.runs <- struct{}{}:
	default: // the next Synchronize covers this run, too
	}
}

func (o workerDevice) watch() {
	defer close(o.done)
	for range o.runs {
		_ = o.stream.Synchronize() // the next call reports an error again
	}
}

func (o workerDevice) release() error {
	if o.lost.Load() {
		return nil // the teardown might hang; ending the process frees the device
	}
	close(o.runs)
	<-o.done
	return o.close()
}

// workers are the worker processes of the ranks. They end together, because a single rank
// would wait for the others forever.
type workers struct {
	list  []*worker
	limit time.Duration // timeout of a call

	mu      sync.Mutex
	open    int   // ranks that are not closed
	failure error // why the workers died: the first cause
	leaving bool  // after the last close: workers end by themselves

	dead chan struct{} // closed when failure is set
}

type worker struct {
	rank   int
	cmd    *exec.Cmd
	conn   net.Conn
	ended  chan struct{} // closed when the process has ended
	remote *remote
}

// startWorkers starts a worker process for each rank, on consecutive devices from a
// module number or on any with -1, and joins them in a communicator.
func startWorkers(module, ranks int) (*workers, error) {
	limit, err := world.Timeout()
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
		w.mu.Lock() // a worker that has already ended kills those in the list
		w.list = append(w.list, one)
		w.mu.Unlock()
	}
	if err := w.rendezvous(); err != nil {
		w.end()
		return nil, err
	}
	return w, nil
}

// rendezvous opens the devices and joins all ranks in one communicator.
func (w *workers) rendezvous() error {
	err := w.each(func(o *worker) (err error) {
		o.remote, err = w.dial(o)
		return err
	})
	if err != nil {
		return err
	}
	id, err := w.list[0].remote.uniqueID()
	if err != nil {
		return fmt.Errorf("create the id of a communicator: %w; %s", err, hintNetwork)
	}
	err = w.each(func(o *worker) error { return o.remote.join(id, len(w.list), o.rank) })
	if err != nil {
		return fmt.Errorf("%w; %s", err, hintNetwork)
	}
	return nil
}

func (w *workers) dial(o *worker) (*remote, error) {
	limit := w.limit + answerGrace
	r, err := dial(o.conn, func(err error) error { return w.explain(o, err) }, w.close, limit, func() {
		w.kill(fmt.Errorf("%w: the process of rank %d has not answered for %v (%s sets a longer timeout)", backend.ErrDeviceLost, o.rank, limit, world.TimeoutVariable))
	})
	r.abortAll = func(why error) {
		w.kill(fmt.Errorf("%w: rank %d left the group: %w", backend.ErrDeviceLost, o.rank, why))
	}
	return r, err
}

// each calls do for all ranks concurrently. The first failure kills all workers, which
// may be waiting for the failed rank.
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
	_ = g.Wait() // w.failure is the first in time, which tells more than the first in the list
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failure
}

func (w *workers) start(rank, module int) (*worker, error) {
	if !canServe {
		return nil, errors.New("several ranks need worker processes: call gaudi.RunWorker at the start of main")
	}
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(ends[0]), "worker"), os.NewFile(uintptr(ends[1]), "parent")
	defer ours.Close()
	defer theirs.Close()
	o := &worker{rank: rank, ended: make(chan struct{})}
	// /proc/self/exe is this program even if its file has been replaced. The arguments
	// identify the worker in process lists.
	o.cmd = &exec.Cmd{Path: "/proc/self/exe", Args: []string{os.Args[0], "(Gaudi of rank " + strconv.Itoa(rank) + ")"}}
	if o.conn, err = net.FileConn(ours); err != nil {
		return nil, err
	}
	o.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", workerVariable, module))
	o.cmd.ExtraFiles = []*os.File{theirs}
	o.cmd.Stdout, o.cmd.Stderr = os.Stderr, os.Stderr // output of the vendor's libraries
	// The worker ends with this process, even if this process is killed. A process group
	// of its own shields the worker from the terminal's Ctrl-C, after which this process
	// still finishes its step.
	o.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error)
	go func() {
		// Pdeathsig fires when the thread that started the process ends, so this thread
		// must outlive the process.
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

// died records the end of a worker. Unless it was expected, it kills all workers and
// fails the pending calls.
func (w *workers) died(o *worker, err error) {
	defer close(o.ended)
	w.mu.Lock()
	expected := err == nil && w.leaving
	w.mu.Unlock()
	if expected {
		return
	}
	if err == nil {
		err = errors.New("it exited unexpectedly")
	}
	w.kill(fmt.Errorf("%w: the process of rank %d has ended: %w", backend.ErrDeviceLost, o.rank, err))
}

// kill ends all workers and records the cause, of which the first counts.
func (w *workers) kill(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failure == nil && cause != nil {
		w.failure = cause
		close(w.dead)
	}
	for _, o := range w.list {
		_ = o.cmd.Process.Kill() // may have ended
		_ = o.conn.Close()
	}
}

// end kills all workers and waits until their devices are free, at most exitTimeout: a
// driver may hold a process back.
func (w *workers) end() {
	w.kill(nil)
	limit := time.After(exitTimeout)
	for _, o := range w.list {
		select {
		case <-o.ended:
		case <-limit:
			return
		}
	}
}

// explain returns the root cause of a rank's error. When a process does not answer or its
// device fails, the cause may be another rank's end, which becomes known a moment later.
func (w *workers) explain(o *worker, err error) error {
	if f, answered := errors.AsType[*failure](err); answered {
		select {
		case <-w.dead:
		case <-time.After(200 * time.Millisecond):
			switch {
			case errors.Is(f, backend.ErrDeviceLost):
				w.kill(fmt.Errorf("rank %d: %w", o.rank, f))
			case stallsRanks(f.Cause):
				w.kill(fmt.Errorf("%w: rank %d: %w", backend.ErrDeviceLost, o.rank, err))
			default:
				return err
			}
		}
	} else {
		_ = o.conn.Close()
		select {
		case <-o.ended:
		case <-w.dead: // a driver may hold back a killed process
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return cmp.Or(w.failure, err)
}

// stallsRanks reports whether the other ranks may wait forever for the rank with this
// error.
func stallsRanks(e *libsynapse.Error) bool {
	return e.DeviceLost() || e.Name() == "synFailHccl" || strings.HasPrefix(e.Call, "hccl")
}

// exitTimeout is how long a process may take to release its device.
const exitTimeout = 10 * time.Second

// close is called by each rank. The last call releases all devices concurrently, because
// the ranks leave their communicator together, and ends the processes.
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
			late := time.AfterFunc(exitTimeout, func() {
				w.kill(fmt.Errorf("the process of rank %d did not release its device within %v", o.rank, exitTimeout))
			})
			defer late.Stop()
			var err error
			if !dead {
				err = o.remote.do(request{Method: methodRelease})
			}
			_ = o.conn.Close() // the worker exits on EOF
			select {
			case <-o.ended:
				return err
			case <-time.After(exitTimeout):
				return errors.Join(err, fmt.Errorf("the process %d of rank %d does not exit", o.cmd.Process.Pid, o.rank))
			}
		})
	}
	return g.Wait()
}
