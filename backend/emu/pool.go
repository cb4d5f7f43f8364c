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
// and a task must not call run, nor wait for another task.
//
// A task is claimed by counting remaining down, so a worker that wakes late
// finds nothing and delays nobody. Claiming orders memory: work and total are
// written before remaining is, and read after a claim.
type pool struct {
	workers int         // including the caller of run
	spin    bool        // before sleeping
	scratch [][]float32 // of the op in progress, one for each worker

	// What workers poll has a cache line to itself, and so has what they count
	// down when they end a task.
	_         [64]byte
	work      func(worker, task int)
	total     int
	remaining atomic.Int64 // tasks nobody has claimed
	_         [64]byte
	pending   atomic.Int64 // tasks that have not ended
	_         [64]byte

	asleep  atomic.Int64 // workers that sleep, or are about to
	waiting atomic.Bool  // the caller sleeps, or is about to
	closed  atomic.Bool
	wake    chan struct{} // one token wakes one worker
	done    chan struct{} // wakes the caller

	failure atomic.Pointer[taskPanic]
	ended   sync.WaitGroup
}

// taskPanic is what run panics with after a task has panicked.
type taskPanic struct {
	value any
	stack []byte
}

func (t *taskPanic) Error() string { return fmt.Sprintf("%v\n\n%s", t.value, t.stack) }

// processors is how many workers can run at a time. Tests claim more than
// there are.
var processors = func() int { return min(runtime.GOMAXPROCS(0), runtime.NumCPU()) }

// newPool makes a pool of n workers, but at least one, and no more than there
// are processors: another would only take one from the others in the middle of
// a task. They end with close.
func newPool(n int) *pool {
	n = max(1, min(n, processors()))
	p := &pool{
		workers: n,
		scratch: make([][]float32, n),
		// A worker that spins must not keep another from working.
		spin: n <= runtime.GOMAXPROCS(0),
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
	if p.spinUntil(&p.pending, false) {
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
	for !p.closed.Load() {
		p.drain(worker)
		if p.spinUntil(&p.remaining, true) {
			continue
		}
		p.asleep.Add(1)
		if p.remaining.Load() == 0 {
			<-p.wake // also returns once the pool is closed
		}
		p.asleep.Add(-1)
	}
}

// spinUntil polls count for spinBudget at most and says whether it was seen
// above zero, as wanted, or at zero. Polls are rare, some 50 ns apart, so that
// the cache line is where the next change is made; looking at the clock and
// giving way to other goroutines is rarer still, as each takes longer than the
// way from one processor to another.
func (p *pool) spinUntil(count *atomic.Int64, above bool) bool {
	if count.Load() > 0 == above {
		return true
	}
	if !p.spin {
		return false
	}
	for start := time.Now(); time.Since(start) < spinBudget; {
		for range 64 {
			if count.Load() > 0 == above {
				return true
			}
			pause(4)
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
