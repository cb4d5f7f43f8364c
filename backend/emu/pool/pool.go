// Package pool has the workers that run the tasks of an op, and memory aligned for them.
package pool

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"octet/backend/emu/simd"
)

// spinBudget is the time for which a worker polls for the next op before it sleeps. Within
// a step the next op starts sooner. Waking a sleeping thread, whose processor may sleep,
// too, takes about as long.
const spinBudget = 50 * time.Microsecond

// Pool is a fixed set of workers that run the tasks of one op at a time. The
// goroutine that calls Run is worker 0; it must be one goroutine at a time,
// and a task must not call Run, nor wait for another task.
//
// Each worker has a share of the tasks, a contiguous range: ops split rows from the top
// down, so a worker finds the rows that it wrote in the previous op in its own cache. A
// worker that has finished its share steals from the end of another's, so a worker that
// wakes late finds no tasks and delays no other. Claims order memory: Run writes work
// before the shares, and workers read it after a claim.
type Pool struct {
	workers int         // including the caller of Run
	spin    bool        // poll before sleeping
	Scratch [][]float32 // one for each worker, used by the op in progress

	work    func(worker, task int)
	shares  []share
	_       [64]byte
	pending atomic.Int64 // tasks that have not ended; counted down at each end
	_       [64]byte

	asleep  atomic.Int64 // workers that sleep or are about to
	waiting atomic.Bool  // the caller of Run sleeps or is about to
	closed  atomic.Bool
	wake    chan struct{} // one token wakes one worker
	done    chan struct{} // wakes the caller

	failure atomic.Pointer[taskPanic]
	ended   sync.WaitGroup
}

// share is the range of a worker's unclaimed tasks: the first in the upper half of the
// word, the end in the lower half. Its worker polls it, so it has a cache line of its own,
// and the adjacent line that the processor fetches with it.
type share struct {
	atomic.Uint64
	_ [120]byte
}

func (s *share) set(first, end int) { s.Store(uint64(first)<<32 | uint64(end)) }

func (s *share) empty() bool {
	tasks := s.Load()
	return tasks>>32 >= tasks&(1<<32-1)
}

// claim takes the first task of the share, or the last.
func (s *share) claim(last bool) (task int, ok bool) {
	for {
		tasks := s.Load()
		first, end := tasks>>32, tasks&(1<<32-1)
		if first >= end {
			return 0, false
		}
		task, rest := first, (first+1)<<32|end
		if last {
			task, rest = end-1, first<<32|(end-1)
		}
		if s.CompareAndSwap(tasks, rest) {
			return int(task), true
		}
	}
}

// taskPanic is the value of Run's panic after a task has panicked.
type taskPanic struct {
	value any
	stack []byte
}

func (t *taskPanic) Error() string { return fmt.Sprintf("%v\n\n%s", t.value, t.stack) }

// processors returns how many workers can run in parallel. Tests override it.
var processors = func() int { return min(runtime.GOMAXPROCS(0), runtime.NumCPU()) }

// New returns a pool of n workers, at least one and at most one per processor: more
// would only preempt each other in the middle of tasks. Close ends the workers.
func New(n int) *Pool {
	n = max(1, min(n, processors()))
	p := &Pool{
		workers: n,
		Scratch: make([][]float32, n),
		shares:  make([]share, n),
		// A polling worker must not take a processor from a working one.
		spin: n <= runtime.GOMAXPROCS(0),
		wake: make(chan struct{}, n),
		done: make(chan struct{}),
	}
	for w := 1; w < n; w++ {
		p.ended.Go(func() { p.serve(w) })
	}
	return p
}

// Close ends the workers and waits for them. The pool must be idle; it cannot
// be used again.
func (p *Pool) Close() {
	p.closed.Store(true)
	close(p.wake)
	p.ended.Wait()
}

// Size returns the number of workers, including the caller of Run.
func (p *Pool) Size() int { return p.workers }

// Reserve grows the scratch of each worker to at least n floats.
func (p *Pool) Reserve(n int) {
	for w := range p.Scratch {
		if len(p.Scratch[w]) < n {
			p.Scratch[w] = View[float32](WorkerBytes(int64(n) * 4))
		}
	}
}

// Run calls f once for each task in [0, tasks), on all workers, and returns when all calls
// have returned. worker, in [0, Size()), is an index for scratch; concurrent calls have
// different ones. Run allocates nothing if f is bound beforehand. If a task panics, Run
// panics: with the same value if it runs tasks on one worker, otherwise with a *taskPanic
// after the other tasks have ended.
func (p *Pool) Run(tasks int, f func(worker, task int)) {
	if p.workers == 1 || tasks <= 1 {
		for t := range tasks {
			f(0, t)
		}
		simd.Fence() // as call does
		return
	}
	p.work = f
	p.pending.Store(int64(tasks))
	for w := range p.shares {
		p.shares[w].set(w*tasks/p.workers, (w+1)*tasks/p.workers)
	}
	for range min(p.asleep.Load(), int64(tasks-1)) {
		select {
		case p.wake <- struct{}{}:
		default: // there are already enough tokens for all workers
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
func (p *Pool) wait() {
	if p.spinUntil(p.idle) {
		return
	}
	p.waiting.Store(true)
	if p.idle() && p.waiting.CompareAndSwap(true, false) {
		return
	}
	<-p.done
}

func (p *Pool) idle() bool { return p.pending.Load() == 0 }

// serve is the main loop of a worker.
func (p *Pool) serve(worker int) {
	own := &p.shares[worker]
	ready := func() bool { return !own.empty() }
	for !p.closed.Load() {
		p.drain(worker)
		if p.spinUntil(ready) {
			continue
		}
		p.asleep.Add(1)
		if own.empty() {
			<-p.wake // Close closes it
		}
		p.asleep.Add(-1)
	}
}

// spinUntil polls ready for at most spinBudget and returns its last result. Polls are some
// 50 ns apart, so that the cache line stays with the processor that will write it. Reading
// the clock and yielding to other goroutines are rarer still, because each takes longer
// than moving a cache line between processors.
func (p *Pool) spinUntil(ready func() bool) bool {
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
			simd.Pause(4)
		}
		runtime.Gosched()
	}
	return false
}

// drain runs tasks until none is left to claim: its own, then its neighbours'.
func (p *Pool) drain(worker int) {
	for i := range p.shares {
		from := &p.shares[(worker+i)%p.workers]
		for {
			task, ok := from.claim(i > 0)
			if !ok {
				break
			}
			p.call(worker, task)
		}
	}
}

// call runs one task and counts it as ended, also if it panics.
func (p *Pool) call(worker, task int) {
	defer func() {
		simd.Fence() // orders streaming stores before the end of the task
		if r := recover(); r != nil {
			p.failure.CompareAndSwap(nil, &taskPanic{r, debug.Stack()})
		}
		if p.pending.Add(-1) == 0 && p.waiting.CompareAndSwap(true, false) {
			p.done <- struct{}{}
		}
	}()
	p.work(worker, task)
}
