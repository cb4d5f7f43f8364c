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
// let it wait for ever where one of them does not come. So a goroutine watches
// while anybody waits: it asks after every rank's device and communicator, and
// how long the wait has been.
//
// The group meets as a whole or not at all. A rank that fails, whose context
// ends or that is closed ends it for good: NCCL's kernels are told to end, so that
// nobody waits for them, and every rank answers with the reason from there on.
// What such a kernel leaves in memory is no result, nor is what was computed
// from it: so nothing is read any more. Where the first rank is closed while
// nothing is under way, there is nothing to abort.
type group struct {
	ranks    []*device
	comms    []*libcuda.Comm
	calls    []sync.Mutex  // by rank, held in calls of NCCL
	patience time.Duration // that a rank has for one wait

	mu       sync.Mutex
	waits    []wait // by rank
	open     int    // ranks that are not closed
	ended    error  // why
	aborting bool   // and not in order
	released chan struct{}
}

// wait is what a rank waits for, and how often who watches has seen it wait; no name:
// for nothing. Of the hour in which a process was stopped nothing is seen, and no
// device to blame for it.
type wait struct {
	what string
	seen int
}

const (
	timeoutVariable = "OCTET_NCCL_TIMEOUT"
	watchEvery      = 200 * time.Millisecond
	// releasePatience is how long the last rank to be closed waits for NCCL's
	// communicators to go. That of a lost device may not.
	releasePatience = 10 * time.Second
	// callPatience is how long a communicator is not aborted under a call. Those
	// that put work on a stream take microseconds; one that takes longer waits
	// within NCCL for ranks that do not come, and is to be ended.
	callPatience = time.Second
)

// connect makes a group of devices, in the order of their ranks.
func connect(devices []*device) error {
	patience, err := backend.Patience(timeoutVariable)
	if err != nil {
		return err
	}
	g := &group{
		ranks: devices, calls: make([]sync.Mutex, len(devices)), patience: patience,
		waits: make([]wait, len(devices)), open: len(devices), released: make(chan struct{}),
	}
	if l := nccl(); !l.OK {
		return fmt.Errorf("%w that %d ranks can use: NCCL cannot be loaded: %s; %s, set train.ranks = 1", backend.ErrNoDevice, len(devices), l.Detail, l.Fix)
	}
	var gpus []*libcuda.Device
	for _, d := range devices {
		gpus = append(gpus, d.gpu.Device)
	}
	comms, err := libcuda.NewComms(gpus)
	if err != nil {
		return fmt.Errorf("connect %d GPUs: %w (NCCL_DEBUG=WARN tells more)", len(devices), err)
	}
	g.comms = comms
	for rank, d := range devices {
		d.group, d.rank, d.comm = g, rank, comms[rank]
		d.spec.Arithmetic = d.arithmetic()
	}
	go g.watch()
	return nil
}

// begin notes that a rank does what may have to wait for others. It fails once
// the group has ended.
func (g *group) begin(rank int, what string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waits[rank] = wait{what: what}
	return g.ended
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
	g.mu.Lock()
	defer g.mu.Unlock()
	cause := errors.New("it was closed")
	if g.ended == nil && g.idle() {
		g.ended = left(rank, cause)
		return
	}
	g.end(rank, cause)
}

// idle says whether nothing is under way on any rank, and nothing wrong.
func (g *group) idle() bool {
	for rank, d := range g.ranks {
		if g.waits[rank].what != "" || d.comm.Err() != nil || !d.recording.TryLock() {
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

// await waits until a rank is in no call of NCCL, and not longer than
// callPatience. Once the group has ended, it comes to none any more.
func (g *group) await(rank int) {
	for begin := time.Now(); time.Since(begin) < callPatience; time.Sleep(time.Millisecond) {
		if g.calls[rank].TryLock() {
			g.calls[rank].Unlock()
			return
		}
	}
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
	case <-time.After(releasePatience):
	}
}

func (g *group) watch() {
	for range time.Tick(watchEvery) {
		if !g.look() {
			return
		}
	}
}

// look ends the group where nobody would do it otherwise. It says whether there
// is more to watch.
func (g *group) look() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	anybody := false
	for rank := range g.waits {
		w := &g.waits[rank]
		if w.what == "" {
			continue
		}
		anybody = true
		if w.seen++; time.Duration(w.seen)*watchEvery > g.patience && g.ended == nil {
			g.end(rank, fmt.Errorf("%s: waited %v for its device or for other ranks; its last collective is %s (%s gives more time)", w.what, g.patience, g.ranks[rank].where(), timeoutVariable))
		}
	}
	if anybody && g.ended == nil {
		for rank, d := range g.ranks {
			if err := d.ask(); err != nil {
				g.end(rank, err)
				break // no other communicator is to be asked: they are being freed
			}
		}
	}
	return g.ended == nil
}

// ask is what a rank's communicator and device have to say, without waiting for
// them.
func (d *device) ask() error {
	err := d.comm.Err()
	if err == nil && d.recording.TryLock() { // asking a stream that is captured would spoil the graph
		_, err = d.stream.Idle()
		d.recording.Unlock()
	}
	if err != nil {
		err = d.failure("its last collective is "+d.where(), 0, err)
	}
	return err
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
