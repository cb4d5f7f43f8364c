package emu

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"octet/backend/emu/simd"
)

// spinBudget is how long a worker waits for the next op before it sleeps.
// Within a step the next op comes in less. Waking a sleeping thread, whose
// processor may be asleep too, costs about as much as this.
const spinBudget = 50 * time.Microsecond

// pool is a fixed set of workers that run the tasks of one op at a time. The
// goroutine that calls run is worker 0; it must be one goroutine at a time,
// and a task must not call run, nor wait for another task.
//
// Each worker has a share of the tasks, neighbours in order: ops split rows from
// the top down, so a worker finds in its own cache the rows that it wrote in the
// op before. Who has done its share takes from the end of another's, so a worker
// that wakes late finds nothing and delays nobody. Claiming orders memory: work
// is written before the shares are, and read after a claim.
type pool struct {
	workers  int          // including the caller of run
	spin     bool         // before sleeping
	scratch  [][]float32  // of the op in progress, one for each worker
	products []gemmWorker // likewise, if it is a product

	work    func(worker, task int)
	shares  []share
	_       [64]byte
	pending atomic.Int64 // tasks that have not ended; counted down at each end
	_       [64]byte

	asleep  atomic.Int64 // workers that sleep, or are about to
	waiting atomic.Bool  // the caller sleeps, or is about to
	closed  atomic.Bool
	wake    chan struct{} // one token wakes one worker
	done    chan struct{} // wakes the caller

	failure atomic.Pointer[taskPanic]
	ended   sync.WaitGroup
}

// share is the range of tasks that a worker has not begun: the first one in the
// upper half of the word, the one behind the last in the lower half. Its worker
// polls it, so it has a cache line to itself, and the one that is fetched with it.
type share struct {
	atomic.Uint64
	_ [120]byte
}

func (s *share) set(first, end int) { s.Store(uint64(first)<<32 | uint64(end)) }

func (s *share) empty() bool {
	tasks := s.Load()
	return tasks>>32 >= tasks&(1<<32-1)
}

// claim takes the first task, or the last.
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
		workers:  n,
		scratch:  make([][]float32, n),
		products: make([]gemmWorker, n),
		shares:   make([]share, n),
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
			p.scratch[w] = view[float32](workerBytes(int64(n) * 4))
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
	if p.spinUntil(p.idle) {
		return
	}
	p.waiting.Store(true)
	if p.idle() && p.waiting.CompareAndSwap(true, false) {
		return
	}
	<-p.done
}

func (p *pool) idle() bool { return p.pending.Load() == 0 }

// serve is the life of a worker.
func (p *pool) serve(worker int) {
	own := &p.shares[worker]
	ready := func() bool { return !own.empty() }
	for !p.closed.Load() {
		p.drain(worker)
		if p.spinUntil(ready) {
			continue
		}
		p.asleep.Add(1)
		if own.empty() {
			<-p.wake // also returns once the pool is closed
		}
		p.asleep.Add(-1)
	}
}

// spinUntil polls for spinBudget at most and says whether ready held. Polls are
// rare, some 50 ns apart, so that the cache line is where the next change is
// made; looking at the clock and giving way to other goroutines is rarer still,
// as each takes longer than the way from one processor to another.
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
			simd.Pause(4)
		}
		runtime.Gosched()
	}
	return false
}

// drain runs tasks until none is left to claim: its own, then its neighbours'.
func (p *pool) drain(worker int) {
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

// call runs one task and accounts for it, whatever becomes of it.
func (p *pool) call(worker, task int) {
	defer func() {
		simd.Fence() // who sees that the task has ended reads what it has streamed
		if r := recover(); r != nil {
			p.failure.CompareAndSwap(nil, &taskPanic{r, debug.Stack()})
		}
		if p.pending.Add(-1) == 0 && p.waiting.CompareAndSwap(true, false) {
			p.done <- struct{}{}
		}
	}()
	p.work(worker, task)
}
