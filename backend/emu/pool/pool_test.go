package pool

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// Tests get pools of the requested size on every machine.
func init() {
	processors = func() int { return 64 }
}

func TestPoolRunsEachTaskOnce(t *testing.T) {
	for _, workers := range []int{0, 1, 2, 3, 8} {
		p := New(workers)
		require.Equal(t, max(workers, 1), p.Size())
		var tasks, busy [100]atomic.Int32
		var clash atomic.Bool
		f := func(worker, task int) {
			if busy[worker].Add(1) != 1 {
				clash.Store(true)
			}
			tasks[task].Add(1)
			if task%7 == 0 {
				runtime.Gosched()
			}
			busy[worker].Add(-1)
		}
		runs := [len(tasks)]int32{}
		for n := range 2 * len(tasks) {
			n %= len(tasks) + 1
			p.Run(n, f)
			for i := range n {
				runs[i]++
			}
		}
		for i := range tasks {
			require.Equal(t, runs[i], tasks[i].Load(), "task %d", i)
		}
		require.False(t, clash.Load(), "two calls had the same worker")
		p.Close()
	}
}

// A pool has at most one worker per processor.
func TestPoolIsNoLargerThanTheMachine(t *testing.T) {
	defer func(all func() int) { processors = all }(processors)
	processors = func() int { return 2 }
	p := New(64)
	defer p.Close()
	require.Equal(t, 2, p.Size())
}

func TestPoolClaimsUnderContention(t *testing.T) {
	p := New(8)
	defer p.Close()
	tasks := make([]atomic.Int32, 200_000)
	p.Run(len(tasks), func(_, task int) { tasks[task].Add(1) })
	for i := range tasks {
		if tasks[i].Load() != 1 {
			require.Failf(t, "claimed twice or never", "task %d ran %d times", i, tasks[i].Load())
		}
	}
}

// A worker that sleeps, or is about to, wakes for the next run: two tasks that wait for
// each other need both workers.
func TestPoolWakesWorkers(t *testing.T) {
	p := New(2)
	defer p.Close()
	var met atomic.Int32
	var deadline time.Time // of a run; missed only if a worker does not wake
	f := func(int, int) {
		met.Add(1)
		for met.Load() < 2 && time.Now().Before(deadline) {
			runtime.Gosched()
		}
	}
	for n := range 300 {
		met.Store(0)
		deadline = time.Now().Add(time.Minute)
		p.Run(2, f)
		require.True(t, time.Now().Before(deadline), "run %d: a worker did not wake", n)
		for start := time.Now(); time.Since(start) < time.Duration(n)*spinBudget/100; {
			runtime.Gosched()
		}
	}
}

// The caller and later tasks see the memory that tasks write, also after workers have
// slept: with -race this checks the ordering.
func TestPoolOrdersMemory(t *testing.T) {
	p := New(3)
	defer p.Close()
	var from, to [64]int
	f := func(_, task int) { to[task] = from[63-task] + 1 }
	for n := range 200 {
		if n%50 == 0 {
			time.Sleep(2 * spinBudget)
		}
		p.Run(len(to), f)
		from = to
	}
	for _, v := range from {
		require.Equal(t, 200, v)
	}
}

func TestPoolPanicSurfacesOnCaller(t *testing.T) {
	p := New(2)
	defer p.Close()
	failure := errors.New("task 5 is broken")
	var ended atomic.Int32
	f := func(_, task int) {
		if task == 5 {
			panic(failure)
		}
		ended.Add(1)
	}
	caught := func() (r any) {
		defer func() { r = recover() }()
		p.Run(20, f)
		return nil
	}()
	failed, ok := caught.(*taskPanic)
	require.True(t, ok, "run panicked with %v", caught)
	require.Equal(t, failure, failed.value)
	require.Contains(t, failed.Error(), "task 5 is broken")
	require.Contains(t, failed.Error(), "TestPoolPanicSurfacesOnCaller", "the stack of the task")
	require.EqualValues(t, 19, ended.Load(), "the other tasks ran")

	p.Run(4, func(int, int) { ended.Add(1) })
	require.EqualValues(t, 23, ended.Load(), "the pool works after a panic")
}

func TestPoolAllocatesNothing(t *testing.T) {
	p := New(2)
	defer p.Close()
	f := func(int, int) {}
	require.Zero(t, testing.AllocsPerRun(100, func() { p.Run(8, f) }))
}

func TestPoolCloseEndsWorkers(t *testing.T) {
	before := runtime.NumGoroutine()
	for _, wait := range []time.Duration{0, 3 * spinBudget} {
		p := New(4)
		p.Run(4, func(int, int) {})
		time.Sleep(wait)
		p.Close()
	}
	for range 1000 { // the goroutines that close waited for may still be ending
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(time.Millisecond)
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), before)
}

// BenchmarkPoolRun reports the overhead of running two equal tasks on two awake workers
// over calling one task directly: median and 10th percentile.
func BenchmarkPoolRun(b *testing.B) {
	p := New(2)
	defer p.Close()
	for _, loops := range []int{0, 1000, 10_000} {
		var sink [2][16]uint64
		f := func(worker, _ int) {
			x := sink[worker][0]
			for range loops {
				x = x*3 + 1
			}
			sink[worker][0] = x
		}
		b.Run(fmt.Sprint(loops), func(b *testing.B) {
			var alone, both []time.Duration
			for b.Loop() {
				for range 100 {
					start := time.Now()
					f(0, 0)
					middle := time.Now()
					p.Run(2, f)
					alone, both = append(alone, middle.Sub(start)), append(both, time.Since(middle))
				}
			}
			slices.Sort(alone)
			slices.Sort(both)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(alone[len(alone)/2]), "alone-ns")
			b.ReportMetric(float64(both[len(both)/2]-alone[len(alone)/2]), "start-ns")
			b.ReportMetric(float64(both[len(both)/10]-alone[len(alone)/10]), "tenth-ns")
		})
	}
}

// A worker that has finished its share steals: worker 0's second task runs while its first
// one has not ended.
func TestPoolStealsTasks(t *testing.T) {
	claimed := processors
	processors = func() int { return 2 }
	p := New(2)
	processors = claimed
	defer p.Close()
	taken := make(chan struct{})
	p.Run(4, func(_, task int) {
		switch task {
		case 0:
			select {
			case <-taken:
			case <-time.After(time.Minute):
				t.Error("no worker stole the second task")
			}
		case 1:
			close(taken)
		}
	})
}

// The prefetches of one worker must not touch cache lines that another writes.
func TestWorkersScratchIsSeparate(t *testing.T) {
	p := New(2)
	defer p.Close()
	p.Reserve(100)
	addresses := []uintptr{uintptr(unsafe.Pointer(&p.Scratch[0][0])), uintptr(unsafe.Pointer(&p.Scratch[1][0]))}
	slices.Sort(addresses)
	require.GreaterOrEqual(t, addresses[1]-addresses[0], uintptr(4*100+WorkerGap))
}
