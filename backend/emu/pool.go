package emu

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// spinBudget is how long a worker waits for the next op before it sleeps.
// Within a step the next op comes in less. Waking a sleeping thread, whose
// processor may be asleep too, costs about as much as this.
const spinBudget = 50 * time.Microsecond

// pool is a fixed set of workers that run the tasks of one op at a time. The
// goroutine that calls run is worker 0; it must be one goroutine at a time,
// and a task must not call run.
//
// A task is claimed by counting remaining down, so a worker that wakes late
// finds nothing and delays nobody. Claiming orders memory: work and total are
// written before remaining is, and read after a claim.
type pool struct {
	workers int // including the caller of run
	spin    bool
	scratch [][]float32 // of the op in progress, one for each worker

	work  func(worker, task int)
	total int

	remaining atomic.Int64 // tasks nobody has claimed
	pending   atomic.Int64 // tasks that have not ended
	asleep    atomic.Int64 // workers that sleep, or are about to
	waiting   atomic.Bool  // the caller sleeps, or is about to
	closed    atomic.Bool
	wake      chan struct{} // one token wakes one worker
	done      chan struct{} // wakes the caller

	failure atomic.Pointer[taskPanic]
	ended   sync.WaitGroup
}

// taskPanic is what run panics with after a task has panicked.
type taskPanic struct {
	value any
	stack []byte
}

func (t *taskPanic) Error() string { return fmt.Sprintf("%v\n\n%s", t.value, t.stack) }

// newPool starts n-1 workers; n below 1 counts as 1. They end with close.
func newPool(n int) *pool {
	n = max(n, 1)
	p := &pool{
		workers: n,
		scratch: make([][]float32, n),
		// Without a processor for each worker, one that spins keeps another
		// from working.
		spin: n <= min(runtime.GOMAXPROCS(0), runtime.NumCPU()),
		wake: make(chan struct{}, n),
		done: make(chan struct{}),
	}
	for w := 1; w < n; w++ {
		p.ended.Go(func() { p.serve(w) })
	}
	return p
}

// close ends the workers and waits for them. The pool must be idle; it cannot
// be used again.
func (p *pool) close() {
	p.closed.Store(true)
	close(p.wake)
	p.ended.Wait()
}

// size is the number of workers, the caller of run among them.
func (p *pool) size() int { return p.workers }

// reserve makes the scratch of each worker at least n floats.
func (p *pool) reserve(n int) {
	for w := range p.scratch {
		if len(p.scratch[w]) < n {
			p.scratch[w] = make([]float32, n)
		}
	}
}

// run calls f once for each task in [0, tasks), on all workers, and returns
// when the last call has. worker, in [0, p.workers), is an index for scratch
// that no two calls use at the same time. run allocates nothing if f is bound
// beforehand. A panic in a task is a panic in run: as it is where the task ran
// alone, else as a *taskPanic, after the other tasks have ended.
func (p *pool) run(tasks int, f func(worker, task int)) {
	if p.workers == 1 || tasks <= 1 {
		for t := range tasks {
			f(0, t)
		}
		return
	}
	p.work, p.total = f, tasks
	p.pending.Store(int64(tasks))
	p.remaining.Store(int64(tasks))
	for range min(p.asleep.Load(), int64(tasks-1)) {
		select {
		case p.wake <- struct{}{}:
		default: // enough tokens for everybody are there
		}
	}
	p.drain(0)
	p.wait()
	p.work = nil
	if failed := p.failure.Swap(nil); failed != nil {
		panic(failed)
	}
}

// wait returns when no task is pending.
func (p *pool) wait() {
	if p.spinUntil(func() bool { return p.pending.Load() == 0 }) {
		return
	}
	p.waiting.Store(true)
	if p.pending.Load() == 0 && p.waiting.CompareAndSwap(true, false) {
		return
	}
	<-p.done
}

// serve is the life of a worker.
func (p *pool) serve(worker int) {
	ready := func() bool { return p.remaining.Load() > 0 || p.closed.Load() }
	for !p.closed.Load() {
		p.drain(worker)
		if p.spinUntil(ready) {
			continue
		}
		p.asleep.Add(1)
		if !ready() {
			<-p.wake
		}
		p.asleep.Add(-1)
	}
}

// spinUntil polls for spinBudget at most and says whether ready held.
func (p *pool) spinUntil(ready func() bool) bool {
	if ready() {
		return true
	}
	if !p.spin {
		return false
	}
	for start := time.Now(); time.Since(start) < spinBudget; {
		for range 64 {
			if ready() {
				return true
			}
		}
		runtime.Gosched()
	}
	return false
}

// drain runs tasks until none is left to claim.
func (p *pool) drain(worker int) {
	for {
		left := p.remaining.Load()
		if left <= 0 {
			return
		}
		if p.remaining.CompareAndSwap(left, left-1) {
			p.call(worker, p.total-int(left))
		}
	}
}

// call runs one task and accounts for it, whatever becomes of it.
func (p *pool) call(worker, task int) {
	defer func() {
		if r := recover(); r != nil {
			p.failure.CompareAndSwap(nil, &taskPanic{r, debug.Stack()})
		}
		if p.pending.Add(-1) == 0 && p.waiting.CompareAndSwap(true, false) {
			p.done <- struct{}{}
		}
	}()
	p.work(worker, task)
}
