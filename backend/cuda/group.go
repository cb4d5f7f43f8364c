//go:build cuda && cgo && linux

package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"octet/backend"
	"octet/csrc/libcuda"
)

// group is the GPUs of one process that train together, a rank each. Every rank
// runs its programs from a goroutine of its own; collectives meet on the devices.
//
// A rank that waits for its device may wait for all others, and the driver would
// let it wait for ever where one of them does not come. Two goroutines watch the
// ranks (watch.go).
//
// The group meets as a whole or not at all. A rank that fails, whose context
// ends or that is closed ends it for good: NCCL's kernels are told to end, so that
// nobody waits for them, and every rank answers with the reason from there on.
// What such a kernel leaves in memory is no result, nor is what was computed
// from it: so nothing is read any more. Where the first rank is closed while
// nothing is under way, there is nothing to abort.
type group struct {
	comms      []*libcuda.Comm
	calls      []sync.Mutex  // by rank, held in calls of NCCL
	asking     sync.Mutex    // held while a device or communicator is asked for its state
	timeout    time.Duration // of one wait of a rank
	beforeExit func(error)   // see backend.Options

	// No call of the driver or of NCCL is made with mu held: such a call may hang, and
	// the deadline's watcher needs mu.
	mu       sync.Mutex
	ranks    []*device // nil before the rank is connected, and once it is closed
	waits    []wait    // by rank
	open     int       // ranks that are not closed
	ended    error     // why
	aborting bool      // and not in order
	released chan struct{}
}

const (
	timeoutVariable = "OCTET_NCCL_TIMEOUT"
	// releaseTimeout is how long the last rank to be closed waits for NCCL's
	// communicators to go. That of a lost device may not.
	releaseTimeout = 10 * time.Second
	// callTimeout is how long a communicator is not aborted under a call. Those
	// that put work on a stream take microseconds; one that takes longer waits
	// within NCCL for ranks that do not come, and is to be ended.
	callTimeout = time.Second
)

// newGroup makes a group whose ranks have no devices yet, and begins to watch their
// deadlines: opening a GPU can hang like any other call of the driver.
func newGroup(ranks int, beforeExit func(error)) (*group, error) {
	timeout, err := backend.Patience(timeoutVariable)
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
		return fmt.Errorf("connect %d GPUs: %w (NCCL_DEBUG=WARN tells more)", len(devices), err)
	}
	go g.watchDevices()
	return nil
}

// join stores the devices and their communicators, by rank. A group that has ended gets
// none: it was told to abort before it had communicators, so join aborts these.
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
			all.Go(func() { _ = c.Abort() }) // the reason why the group ended tells more
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

// dissolve ends the watching of a group whose devices could not be opened.
func (g *group) dissolve() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = 0
}

// watch begins a wait of a rank.
func (g *group) watch(rank int, what string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waits[rank] = wait{what: what}
}

// begin notes that a rank does what may have to wait for others. It fails once
// the group has ended.
func (g *group) begin(rank int, what string) error {
	g.watch(rank, what)
	return g.over()
}

// during calls do, which may hang and waits for no other rank. An error of do is the
// caller's alone and does not end the group; a group that ended during the call is an error.
func (g *group) during(rank int, what string, do func() error) error {
	defer g.finish(rank)
	if err := g.begin(rank, what); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return g.over()
}

// finish notes that a rank waits for nothing.
func (g *group) finish(rank int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waits[rank] = wait{}
}

// done notes that this is over, and makes of its error, or of a group that ended
// meanwhile, the rank's error.
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

// over is why the group does not meet any more; nil while it does.
func (g *group) over() error {
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

// idle says whether nothing is under way on any rank, and nothing wrong.
func (g *group) idle() bool {
	if !lockWithin(&g.asking, callTimeout) {
		return false
	}
	defer g.asking.Unlock()
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
	if lockWithin(&g.asking, callTimeout) { // otherwise the driver hangs, and so will Close
		defer g.asking.Unlock()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ranks[rank] = nil
}

func left(rank int, cause error) error {
	return fmt.Errorf("cuda: %w: rank %d left the group: %w", backend.ErrDeviceLost, rank, cause)
}

// end is called with the lock held.
func (g *group) end(rank int, cause error) {
	if g.ended != nil {
		return
	}
	if !errors.Is(cause, backend.ErrDeviceLost) {
		cause = left(rank, cause)
	}
	g.ended, g.aborting = cause, true
	g.release(func(rank int) error {
		g.await(rank)
		return g.comms[rank].Abort()
	})
}

// await waits until a rank is in no call of NCCL and its communicator is not being
// asked, and not longer than callTimeout for each. Once the group has ended, it comes to
// none any more.
func (g *group) await(rank int) {
	for _, m := range []*sync.Mutex{&g.calls[rank], &g.asking} {
		if lockWithin(m, callTimeout) {
			m.Unlock()
		}
	}
}

// lockWithin locks m, and reports false if that takes longer than the timeout.
func lockWithin(m *sync.Mutex, timeout time.Duration) bool {
	for begin := time.Now(); !m.TryLock(); time.Sleep(time.Millisecond) {
		if time.Since(begin) > timeout {
			return false
		}
	}
	return true
}

// release gives all communicators back, for which NCCL wants a thread each.
func (g *group) release(give func(rank int) error) {
	var all sync.WaitGroup
	for rank := range g.comms {
		all.Go(func() { _ = give(rank) }) // what it says comes too late
	}
	go func() {
		all.Wait()
		close(g.released)
	}()
}

// close forgets a rank that has left and freed its graphs. The last one waits for
// the communicators: NCCL keeps them while there are graphs that use them.
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

// wait does what may have to wait for other ranks.
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

// watched does what may hang in the driver and waits for no other rank.
func (d *device) watched(what string, do func() error) error {
	if d.group == nil {
		return do()
	}
	return d.group.during(d.rank, what, do)
}

// met takes the names of collectives, which who watches may be reading.
func (d *device) met(meetings []string) {
	if d.group != nil {
		d.group.mu.Lock()
		defer d.group.mu.Unlock()
	}
	d.meetings = meetings
}

// where is the collective that the device has come to last, for errors: a graph
// is one piece to the host.
func (d *device) where() string {
	mark := binary.LittleEndian.Uint64(d.staging.Bytes[markAt:])
	if mark == 0 || mark > uint64(len(d.meetings)) {
		return "nothing"
	}
	return d.meetings[mark-1]
}

// meet puts a collective on the stream. A rank alone has all parts already.
func (d *device) meet(c *collective) error {
	from, to := libcuda.Ptr(c.from), libcuda.Ptr(c.to)
	if d.group == nil {
		bytes := c.n
		if c.kind == sumScatter {
			bytes *= 4
		}
		if from == to {
			return nil
		}
		return d.stream.Copy(to, from, bytes)
	}
	// An aborted communicator is freed: nothing may be asked of it. Who ends the
	// group meanwhile waits for this call (await).
	calls := &d.group.calls[d.rank]
	calls.Lock()
	defer calls.Unlock()
	if err := d.group.over(); err != nil {
		return err
	}
	if err := d.stream.DownloadPinned(d.staging.Pinned, markAt, libcuda.Ptr(c.mark), markBytes); err != nil {
		return err
	}
	switch c.kind {
	case sumAll:
		return d.comm.AllReduceSum(d.stream, to, c.n)
	case maxAll:
		return d.comm.AllReduceMax(d.stream, to, c.n)
	case sumScatter:
		return d.comm.ReduceScatterSum(d.stream, to, from, c.n)
	case gather:
		return d.comm.AllGather(d.stream, to, from, c.n)
	case send:
		return d.comm.Send(d.stream, from, c.n, c.peer)
	default:
		return d.comm.Recv(d.stream, to, c.n, c.peer)
	}
}
