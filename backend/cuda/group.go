//go:build cuda && cgo && linux

package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
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
// from it: so nothing is read any more.
type group struct {
	ranks    []*device
	patience time.Duration // that a rank has for one wait

	mu      sync.Mutex
	waits   []wait // by rank
	open    int    // ranks that are not closed
	ended   error  // why
	aborted chan struct{}
}

// wait is what a rank waits for, and since when; never: for nothing.
type wait struct {
	what  string
	since time.Time
}

const (
	// A wait is for one step at most, which takes seconds; ten minutes are also
	// what PyTorch gives to collectives of NCCL.
	defaultPatience = 10 * time.Minute
	watchEvery      = 200 * time.Millisecond
	// abortPatience is how long the last rank to be closed waits for NCCL's
	// communicators to go. That of a lost device may not.
	abortPatience = 10 * time.Second
)

// connect makes a group of devices, in the order of their ranks.
func connect(devices []*device) error {
	g := &group{ranks: devices, patience: defaultPatience, waits: make([]wait, len(devices)), open: len(devices), aborted: make(chan struct{})}
	if text := os.Getenv("OCTET_NCCL_TIMEOUT"); text != "" {
		var err error
		if g.patience, err = time.ParseDuration(text); err != nil || g.patience <= 0 {
			return fmt.Errorf("OCTET_NCCL_TIMEOUT is %q: a duration such as 10m or 1h30m is needed", text)
		}
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
	g.waits[rank] = wait{what, time.Now()}
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

// end is called with the lock held. The communicators are aborted even where all
// went well: that takes no agreement about who has done what.
func (g *group) end(rank int, cause error) {
	if g.ended != nil {
		return
	}
	if !errors.Is(cause, backend.ErrDeviceLost) {
		cause = fmt.Errorf("cuda: %w: rank %d left the group: %w", backend.ErrDeviceLost, rank, cause)
	}
	g.ended = cause
	var all sync.WaitGroup
	for _, d := range g.ranks {
		comm := d.comm
		all.Go(func() { _ = comm.Abort() }) // what it says comes too late
	}
	go func() {
		all.Wait()
		close(g.aborted)
	}()
}

// close forgets a rank that has left and freed its graphs. The last one waits for
// the communicators: NCCL keeps them while there are graphs that use them.
func (g *group) close() {
	g.mu.Lock()
	g.open--
	last := g.open == 0
	g.mu.Unlock()
	if !last {
		return
	}
	select {
	case <-g.aborted:
	case <-time.After(abortPatience):
	}
}

func (g *group) watch() {
	for now := range time.Tick(watchEvery) {
		if !g.look(now) {
			return
		}
	}
}

// look ends the group where nobody would do it otherwise. It says whether there
// is more to watch.
func (g *group) look(now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	anybody := false
	for rank, w := range g.waits {
		if w.since.IsZero() {
			continue
		}
		anybody = true
		if now.Sub(w.since) > g.patience && g.ended == nil {
			g.end(rank, fmt.Errorf("%s: waited %v for its device or for other ranks; its last collective is %s (OCTET_NCCL_TIMEOUT gives more time)", w.what, g.patience, g.ranks[rank].where()))
		}
	}
	if anybody && g.ended == nil {
		for rank, d := range g.ranks {
			if err := d.ask(); err != nil {
				g.end(rank, err)
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
	mark := binary.LittleEndian.Uint64(d.staging.Bytes[2*stagingBytes:])
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
	// An aborted communicator is freed: nothing may be asked of it. What ends the
	// group from here to the end of the call meets it within NCCL, which is allowed.
	if err := d.group.over(); err != nil {
		return err
	}
	if err := d.stream.DownloadPinned(d.staging, 2*stagingBytes, libcuda.Ptr(c.mark), markBytes); err != nil {
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
