//go:build mpi && cgo && linux

package libmpi

// #include <stdlib.h>
// #include "libmpi.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// ErrClosed is the error of a World after Close.
var ErrClosed = errors.New("MPI is closed")

// World is all processes that the launcher started; each is a rank.
type World struct {
	Library

	rank, size int
	lib        mpi
	c          *C.octet_mpi_world

	one     sync.Mutex    // held during a call
	calls   chan call     // to the thread that calls MPI
	results chan error    // of calls; has room for one that run no longer waits for
	aborts  chan int      // exit codes; has room for one
	stopped chan struct{} // closed at the first error

	mu    sync.Mutex
	cause error // the first error
}

// initialized says that this process called MPI_Init_thread, which it can do once;
// finalized, that MPI_Finalize returned.
var initialized, finalized atomic.Bool

// Open loads the MPI library and initializes it. It returns when all ranks have called it. A
// process without a launcher is a world of one rank.
//
// The error names the files that were tried, and how to install the library. If ctx ends
// first, the error is its cause; MPI_Init_thread cannot be interrupted, so the process must
// exit. An error inside MPI_Init_thread, such as a launcher of another MPI, usually ends
// the process with the library's message.
func Open(ctx context.Context) (*World, error) {
	lib, err := open()
	if err != nil {
		return nil, err
	}
	if !initialized.CompareAndSwap(false, true) {
		return nil, errors.New("MPI was opened before: a process can initialize it once (MPI_Init_thread), so start a new process")
	}
	w := &World{
		lib: lib, calls: make(chan call), results: make(chan error, 1), aborts: make(chan int, 1), stopped: make(chan struct{}),
	}
	ready := make(chan error, 1)
	go w.serve(ready)
	select {
	case err := <-ready:
		if err != nil {
			return nil, fmt.Errorf("%s: %w", lib.Path, err)
		}
		return w, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("MPI_Init_thread waits for other ranks: %w", context.Cause(ctx))
	}
}

// Rank is the number of this process, from 0.
func (w *World) Rank() int { return w.rank }

// Size is the number of ranks.
func (w *World) Size() int { return w.size }

// Stop makes the pending collective and all later ones of this rank fail with the cause,
// for example because the control plane lost a rank. Only the first cause counts. Any
// goroutine may call it.
func (w *World) Stop(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cause == nil {
		w.cause = cause
		close(w.stopped)
	}
}

// Err returns the error that every further collective returns; nil if there is none.
func (w *World) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cause
}

// Close finalizes MPI. It returns when all ranks have called it, or when ctx ends, with its
// cause. After an error or Stop it does not finalize, because that would wait for lost
// ranks; it returns nil, and most launchers then end the other ranks when this process
// exits. A process ends by Exit after Close.
func (w *World) Close(ctx context.Context) error {
	if w.Err() != nil {
		return nil
	}
	err := w.run(ctx, call{kind: finalize})
	w.Stop(ErrClosed)
	return err
}

// Abort ends the processes of all ranks with an exit code from 1 to 255; the launcher
// decides which code it returns itself. Abort does not return. Any goroutine may call it,
// also while a collective waits.
func (w *World) Abort(code int) {
	const grace = 2 * time.Second // for a launcher that ends this process, too
	select {
	case w.aborts <- code:
	default: // another goroutine aborts already
	}
	time.Sleep(grace)
	os.Exit(code)
}

// Exit ends the process like os.Exit. After Close it also runs libc's exit handlers, which
// os.Exit does not: in its handler MPICH reports to mpiexec that the process has ended as it
// should (MPIR_pmi_finalize_on_exit). Without the report, mpiexec kills the ranks that have
// not ended yet, and returns 9.
func Exit(code int) {
	if finalized.Load() {
		C.exit(C.int(code))
	}
	os.Exit(code)
}

// serve is the goroutine that calls MPI, all from its thread.
func (w *World) serve(ready chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := check(w.lib, C.octet_mpi_init(w.lib.Table, &w.c))
	if err == nil {
		w.rank, w.size, w.Path = int(w.c.rank), int(w.c.size), w.lib.Path
		w.Version, err = version(w.lib)
	}
	ready <- err
	if err != nil {
		return
	}
	for {
		select {
		case c := <-w.calls:
			w.results <- w.perform(&c)
			if finalized.Load() {
				return
			}
		case code := <-w.aborts:
			w.abort(code)
		}
	}
}

// abort runs on the thread of serve. MPI_Abort usually does not return.
func (w *World) abort(code int) { C.octet_mpi_abort(w.c, C.int(code)) }

// run hands a call to the thread and waits for its result. If ctx ends, or the World stops
// meanwhile, it returns without one.
func (w *World) run(ctx context.Context, c call) error {
	w.one.Lock()
	defer w.one.Unlock()
	if err := w.Err(); err != nil {
		return err
	}
	w.calls <- c
	select {
	case err := <-w.results:
		if err != nil {
			w.Stop(err)
		}
		return err
	case <-ctx.Done():
		w.Stop(fmt.Errorf("%s did not complete on all ranks: %w", c.kind, context.Cause(ctx)))
	case <-w.stopped:
	}
	return w.Err()
}
