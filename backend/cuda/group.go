//go:build cuda && cgo && linux

package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"octet/backend"
	"octet/backend/world"
	"octet/csrc/libcuda"
)

// group is the GPUs of one process that train together, one rank per GPU. Every rank runs
// its programs from its own goroutine; collectives synchronize on the devices.
//
// A rank that waits for its device may wait for all other ranks, and the driver has no
// timeout. Two goroutines watch the ranks (watch.go).
//
// A rank that fails, whose context ends or that is closed ends the group for good. NCCL's
// kernels are aborted, so that no rank waits for them, and every rank returns the reason
// from then on. The memory that an aborted kernel writes, and everything computed from
// it, is invalid, so reads fail too. If the first rank is closed while all ranks are
// idle, nothing is aborted.
type group struct {
	comms      []*libcuda.Comm
	calls      []sync.Mutex  // by rank, held during NCCL calls
	polling    sync.Mutex    // held while a device or communicator is polled
	timeout    time.Duration // of one wait of a rank
	beforeExit func(error)   // see backend.Options

	// No driver or NCCL call is made with mu held: such a call may hang, and
	// watchDeadlines needs mu.
	mu       sync.Mutex
	ranks    []*device // nil before the rank is connected, and once it is closed
	waits    []wait    // by rank
	open     int       // ranks that are not closed
	ended    error     // the reason; nil while the group works
	aborting bool      // the group ended with an abort
	released chan struct{}
}

const (
	// releaseTimeout is how long the last closed rank waits until NCCL's communicators
	// are freed. On a lost device that may never happen.
	releaseTimeout = 10 * time.Second
	// callTimeout is how long an abort waits for an NCCL call that uses the communicator.
	// Calls that enqueue work take microseconds; one that takes longer waits within NCCL
	// for a missing rank, and only an abort ends it.
	callTimeout = time.Second
)

// newGroup returns a group whose ranks have no devices yet, and starts to watch their
// deadlines: opening a GPU can hang like any other driver call.
func newGroup(ranks int, beforeExit func(error)) (*group, error) {
	timeout, err := world.Timeout()
	if err != nil {
		return nil, err
	}
	g := &group{
		ranks: make([]*device, ranks), calls: make([]sync.Mutex, ranks), timeout: timeout, beforeExit: beforeExit,
		waits: make([]wait, ranks), open: ranks, released: make(chan struct{}),
	}
	go g.watchDeadlines()
	return g, nil
}

// connect gives the group its devices, in the order of their ranks.
func (g *group) connect(devices []*device) error {
	if l := nccl(devices[0].Version); !l.OK {
		return fmt.Errorf("%w that %d ranks can use: NCCL cannot be loaded: %s; %s, set train.ranks = 1", backend.ErrNoDevice, len(devices), l.Detail, l.Fix)
	}
	var gpus []*libcuda.Device
	for _, d := range devices {
		gpus = append(gpus, d.gpu.Device)
	}
	err := g.during(0, "connect the GPUs by NCCL", func() error {
		comms, err := libcuda.NewComms(gpus)
		if err != nil {
			return err
		}
		return g.join(devices, comms)
	})
	if err != nil {
		return fmt.Errorf("connect %d GPUs: %w (set NCCL_DEBUG=WARN for details)", len(devices), err)
	}
	go g.watchDevices()
	return nil
}

// join stores the devices and their communicators, by rank. If the group has ended
// meanwhile, its abort missed these communicators, so join aborts them.
func (g *group) join(devices []*device, comms []*libcuda.Comm) error {
	g.mu.Lock()
	ended := g.ended
	if ended == nil {
		copy(g.ranks, devices)
		g.comms = comms
	}
	g.mu.Unlock()
	if ended != nil {
		var all sync.WaitGroup
		for _, c := range comms {
			all.Go(func() { _ = c.Abort() }) // ended is the cause
		}
		all.Wait()
		return ended
	}
	for rank, d := range devices {
		d.group, d.rank, d.comm = g, rank, comms[rank]
		d.spec.Arithmetic = d.arithmetic()
	}
	return nil
}

// dissolve stops watching a group whose devices could not be opened.
func (g *group) dissolve() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = 0
}

// watch starts a wait of a rank.
func (g *group) watch(rank int, what string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waits[rank] = wait{what: what}
}

// begin starts a wait of a rank and returns an error if the group has ended.
func (g *group) begin(rank int, what string) error {
	g.watch(rank, what)
	return g.err()
}

// during calls do, which may hang and waits for no other rank. An error of do does not
// end the group; if the group ended during the call, during returns the reason.
func (g *group) during(rank int, what string, do func() error) error {
	defer g.finish(rank)
	if err := g.begin(rank, what); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return g.err()
}

// finish ends a wait of a rank.
func (g *group) finish(rank int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waits[rank] = wait{}
}

// done ends a wait of a rank. It returns the reason why the group ended, or else ends the
// group with err.
func (g *group) done(rank int, err error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waits[rank] = wait{}
	if g.ended != nil {
		return g.ended
	}
	if err != nil {
		g.end(rank, err)
	}
	return err
}

// err returns the reason why the group ended, nil while it works.
func (g *group) err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ended
}

// leave ends the group because of a rank.
func (g *group) leave(rank int, cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.end(rank, cause)
}

// retire ends the group because a rank is being closed.
func (g *group) retire(rank int) {
	idle := g.idle()
	g.mu.Lock()
	defer g.mu.Unlock()
	cause := errors.New("it was closed")
	if g.ended == nil && idle {
		g.ended = left(rank, cause)
		return
	}
	g.end(rank, cause)
}

// idle reports whether all ranks are idle and without errors.
func (g *group) idle() bool {
	if !lockWithin(&g.polling, callTimeout) {
		return false
	}
	defer g.polling.Unlock()
	for rank := range g.calls {
		d, waiting := g.member(rank)
		if d == nil || waiting || d.comm.Err() != nil || !d.recording.TryLock() {
			return false
		}
		idle, err := d.stream.Idle()
		d.recording.Unlock()
		if err != nil || !idle {
			return false
		}
	}
	return true
}

// member returns the device of a rank, and whether the rank waits for anything but its
// Close. It returns no device once the group has ended: communicators and streams are
// being freed.
func (g *group) member(rank int) (d *device, waiting bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended != nil {
		return nil, false
	}
	what := g.waits[rank].what
	return g.ranks[rank], what != "" && what != closing
}

// remove takes a rank out of the group before its memory is freed.
func (g *group) remove(rank int) {
	if lockWithin(&g.polling, callTimeout) { // a timeout means that the driver hangs, and Close will hang too
		defer g.polling.Unlock()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ranks[rank] = nil
}

func left(rank int, cause error) error {
	return fmt.Errorf("cuda: %w: rank %d left the group: %w", backend.ErrDeviceLost, rank, cause)
}

// end ends the group unless it has ended. The caller holds mu.
func (g *group) end(rank int, cause error) {
	if g.ended != nil {
		return
	}
	if !errors.Is(cause, backend.ErrDeviceLost) {
		cause = left(rank, cause)
	}
	g.ended, g.aborting = cause, true
	g.release(func(rank int) error {
		g.awaitCalls(rank)
		return g.comms[rank].Abort()
	})
}

// awaitCalls waits until a rank is in no NCCL call and its communicator is not polled, up
// to callTimeout for each. After the group has ended no new call begins.
func (g *group) awaitCalls(rank int) {
	for _, m := range []*sync.Mutex{&g.calls[rank], &g.polling} {
		if lockWithin(m, callTimeout) {
			m.Unlock()
		}
	}
}

// lockWithin locks m, and returns false if that takes longer than the timeout.
func lockWithin(m *sync.Mutex, timeout time.Duration) bool {
	for begin := time.Now(); !m.TryLock(); time.Sleep(time.Millisecond) {
		if time.Since(begin) > timeout {
			return false
		}
	}
	return true
}

// release frees all communicators, one goroutine each, as NCCL requires.
func (g *group) release(give func(rank int) error) {
	var all sync.WaitGroup
	for rank := range g.comms {
		all.Go(func() { _ = give(rank) }) // an error comes too late to matter
	}
	go func() {
		all.Wait()
		close(g.released)
	}()
}

// close removes a rank that has freed its graphs. The last rank waits for the
// communicators: NCCL keeps them while graphs use them.
func (g *group) close() {
	g.mu.Lock()
	g.open--
	last, inOrder := g.open == 0, !g.aborting
	g.mu.Unlock()
	if !last {
		return
	}
	if inOrder {
		g.release(func(rank int) error { return g.comms[rank].Destroy() })
	}
	select {
	case <-g.released:
	case <-time.After(releaseTimeout):
	}
}

// wait calls do, which may wait for other ranks, under the group's deadline. An error
// ends the group.
func (d *device) wait(what string, do func() error) error {
	if d.group == nil {
		return do()
	}
	err := d.group.begin(d.rank, what)
	if err == nil {
		err = do()
	}
	return d.group.done(d.rank, err)
}

// watched calls do, which may hang in the driver and waits for no other rank, under the
// group's deadline.
func (d *device) watched(what string, do func() error) error {
	if d.group == nil {
		return do()
	}
	return d.group.during(d.rank, what, do)
}

// setMarks stores the names of collectives, which a watcher may read concurrently.
func (d *device) setMarks(marks []string) {
	if d.group != nil {
		d.group.mu.Lock()
		defer d.group.mu.Unlock()
	}
	d.marks = marks
}

// lastCollective returns the name of the collective that the device reached last, for
// errors: the host cannot see into a running graph.
func (d *device) lastCollective() string {
	mark := binary.LittleEndian.Uint64(d.staging.Bytes[markAt:])
	if mark == 0 || mark > uint64(len(d.marks)) {
		return "none"
	}
	return d.marks[mark-1]
}

// runCollective enqueues a collective. A single rank copies its input at most.
func (d *device) runCollective(c *collective) error {
	from, to := libcuda.Ptr(c.from), libcuda.Ptr(c.to)
	if d.group == nil {
		bytes := c.n
		if c.kind == reduceScatter {
			bytes *= 4
		}
		if from == to {
			return nil
		}
		return d.stream.Copy(to, from, bytes)
	}
	// An aborted communicator is freed, so it must not be used. An abort waits for this
	// call (awaitCalls).
	calls := &d.group.calls[d.rank]
	calls.Lock()
	defer calls.Unlock()
	if err := d.group.err(); err != nil {
		return err
	}
	if err := d.stream.DownloadPinned(d.staging.Pinned, markAt, libcuda.Ptr(c.mark), markBytes); err != nil {
		return err
	}
	switch c.kind {
	case allReduceSum:
		return d.comm.AllReduceSum(d.stream, to, c.n)
	case allReduceMax:
		return d.comm.AllReduceMax(d.stream, to, c.n)
	case reduceScatter:
		return d.comm.ReduceScatterSum(d.stream, to, from, c.n)
	default:
		return d.comm.AllGather(d.stream, to, from, c.n)
	}
}
