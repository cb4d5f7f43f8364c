//go:build cuda && cgo && linux

package cuda

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"octet/backend"
	"octet/backend/world"
	"octet/csrc/libcuda"
)

// member connects a GPU to those of the other ranks. A goroutine watches both:
//
//   - The device copies a mark to the host before and after each collective. The goroutine
//     tells the group how far the device is, and whether it waits in a collective. A host
//     that waits for a device which computes does not wait for other ranks.
//   - It samples the mark more often to measure the device's time in collectives, without a
//     call to the driver. Where collectives run beside other nodes, it samples the mark of the
//     compute stream's waits for them instead.
//   - An error of the device or of an NCCL communicator ends the group.
//   - When the group has ended, it aborts the communicators, so that the host's waits return.
//     The memory that an aborted kernel writes, and everything computed from it, is invalid,
//     so reads fail, too.
type member struct {
	group *world.Group
	communicators

	using sync.Mutex               // held during NCCL calls
	names atomic.Pointer[[]string] // of the device's collectives, see collectiveOf

	closing  chan struct{} // closed to end the goroutine
	watched  chan struct{} // closed when it has ended
	release  sync.Once     // frees the communicators
	released chan struct{} // closed when they are free
}

const (
	watchEvery = 200 * time.Millisecond
	// sampleEvery is short against ten steps, over which the times are averaged. A sample is a read
	// of host memory.
	sampleEvery = 5 * time.Millisecond
	// releaseTimeout is how long Close waits until the communicators are freed. On a lost
	// device that may never happen.
	releaseTimeout = 10 * time.Second
	// callTimeout is how long an abort waits for an NCCL call that uses a communicator.
	// Calls that enqueue work take microseconds; one that takes longer waits within NCCL
	// for a missing rank, and only an abort ends it.
	callTimeout = time.Second
)

// join connects the device to those of the other ranks, which call join, too.
func (d *device) join(g *world.Group) error {
	if l := nccl(d.Version); !l.OK {
		return fmt.Errorf("%w that %d ranks can use: NCCL cannot be loaded: %s; %s, set train.ranks = 1", backend.ErrNoDevice, g.Size(), l.Detail, l.Fix)
	}
	streams := []*libcuda.Stream{d.stream}
	if d.overlaps {
		var err error
		if d.commStream, err = d.gpu.NewStream(); err != nil {
			return d.failure("open a stream", 0, err)
		}
		streams = append(streams, d.commStream)
		d.spec.Device += ", collectives beside the compute"
	}
	d.member = &member{group: g, closing: make(chan struct{}), watched: make(chan struct{}), released: make(chan struct{})}
	if err := d.connect(backend.Group{}); err != nil {
		d.member = nil
		return err
	}
	go d.member.watch(d, streams...) // Close waits for its end, also after an error
	d.spec.Arithmetic = d.arithmetic()
	return g.Compare(context.Background(), world.Identity{{Name: "GPU and its libraries", Value: d.spec.Arithmetic}})
}

// withChoices calls load. Of several ranks, rank 0 times the algorithms of GEMMs, and
// the others take its choices: timed apart, they would choose differently, and a run would not
// repeat.
func (d *device) withChoices(load func() error) error {
	if d.member == nil {
		return load()
	}
	var mine []byte
	if d.group.Rank() == 0 {
		if err := load(); err != nil {
			return err
		}
		mine = d.Choices()
	}
	all, err := d.group.Exchange(context.Background(), "the algorithms of GEMMs", mine)
	if err != nil {
		return fmt.Errorf("cuda: %w: %w", backend.ErrDeviceLost, err)
	}
	if d.group.Rank() == 0 {
		return nil
	}
	d.earlier = parseChoices(all[0], d.lt.Version)
	return load()
}

// watch runs until the device is closed or the group has ended.
func (m *member) watch(d *device, streams ...*libcuda.Stream) {
	defer close(m.watched)
	ticker, samples := time.NewTicker(watchEvery), time.NewTicker(sampleEvery)
	defer ticker.Stop()
	defer samples.Stop()
	for last := time.Now(); ; {
		select {
		case <-m.closing:
			return
		case <-m.group.Done():
			m.abort()
			return
		case now := <-samples.C:
			m.sample(d.waitMark(), now.Sub(last))
			last = now
			continue
		case <-ticker.C:
		}
		m.tell(d.mark())
		if err := m.poll(d, streams...); err != nil {
			m.group.Fail(world.CodeFailed, d.failure("its last collective is "+d.lastCollective(), 0, err))
		}
	}
}

// tell tells the group where the device is.
func (m *member) tell(mark uint64) {
	m.group.AtOp(int(mark))
	name, in := m.collectiveOf(mark)
	if name != nil {
		m.group.Waits(name)
	}
	if !in {
		m.group.Continues()
	}
}

// sample adds the time since the last sample to the wait of this rank if the device is in a
// collective.
func (m *member) sample(mark uint64, since time.Duration) {
	if _, in := m.collectiveOf(mark); in {
		m.group.AddWait(since)
	}
}

// collectiveOf returns the name of the collective of a mark, nil before the first, and whether the
// device is in it: collective i has the marks 2i+1, before it, and 2i+2, after it.
func (m *member) collectiveOf(mark uint64) (name *string, in bool) {
	names := m.names.Load()
	if names == nil || mark == 0 || mark > 2*uint64(len(*names)) {
		return nil, false
	}
	return &(*names)[(mark-1)/2], mark%2 == 1
}

// poll returns an error of a communicator or of the device, without waiting for them.
func (m *member) poll(d *device, streams ...*libcuda.Stream) error {
	err := m.err()
	if err == nil && d.recording.TryLock() { // querying a captured stream would invalidate the graph
		defer d.recording.Unlock()
		for _, s := range streams {
			if _, err := s.Idle(); err != nil {
				return err
			}
		}
	}
	return err
}

// abort frees the communicators, which ends the collectives that the device waits in. NCCL keeps
// them while graphs use them, so that it may free them after the graphs were closed.
func (m *member) abort() {
	m.release.Do(func() {
		if lockWithin(&m.using, callTimeout) {
			m.using.Unlock() // after the group has ended no new call begins
		}
		go func() {
			defer close(m.released)
			m.communicators.abort()
		}()
	})
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

// stop ends the watch before the device frees its memory.
func (m *member) stop() {
	close(m.closing)
	<-m.watched
}

// close frees the communicators, after the graphs were closed.
func (m *member) close() {
	if m.group.Err() != nil {
		m.abort() // the watch may have stopped before it saw that the group ended
	}
	m.release.Do(func() {
		go func() {
			defer close(m.released)
			m.destroy()
		}()
	})
	select {
	case <-m.released:
	case <-time.After(releaseTimeout):
	}
}

// ended returns why the group ended; nil while it works.
func (m *member) ended() error {
	if m == nil {
		return nil
	}
	if err := m.group.Err(); err != nil {
		return fmt.Errorf("cuda: %w: %w", backend.ErrDeviceLost, err)
	}
	return nil
}

// fail ends the group because of this rank.
func (m *member) fail(err error) {
	if m != nil {
		m.group.Fail(world.CodeFailed, err)
	}
}

// wait calls do, which may wait for other ranks. An error ends the group. If the group has
// ended, it returns why.
func (d *device) wait(do func() error) error {
	if d.member == nil {
		return do()
	}
	if err := d.ended(); err != nil {
		return err
	}
	err := do()
	if ended := d.ended(); ended != nil {
		return ended
	}
	if err != nil {
		d.fail(err)
	}
	return err
}

// mark returns the last mark of the device; 0 before the first.
func (d *device) mark() uint64 { return binary.LittleEndian.Uint64(d.staging.Bytes[markAt:]) }

// waitMark returns the last mark by which the device's nodes wait for a collective.
func (d *device) waitMark() uint64 {
	if d.commStream == nil {
		return d.mark()
	}
	return binary.LittleEndian.Uint64(d.staging.Bytes[joinAt:])
}

// lastCollective returns the name of the last collective that the device has reached, for errors:
// the host cannot see into a running graph.
func (d *device) lastCollective() string {
	if name, _ := d.collectiveOf(d.mark()); name != nil {
		return *name
	}
	return "none"
}

// setMarks stores the names of collectives, which the goroutine may read concurrently.
func (d *device) setMarks(marks []string) {
	d.marks = marks
	if d.member != nil {
		d.names.Store(&marks)
	}
}

// runCollective enqueues a collective on a stream. A group of one rank copies its input at most.
func (d *device) runCollective(c *collective, s *libcuda.Stream) error {
	from, to := libcuda.Ptr(c.from), libcuda.Ptr(c.to)
	if d.member == nil || c.ranks == 1 {
		bytes := c.n
		if c.kind == reduceScatter {
			bytes *= 4
		}
		if from == to {
			return nil
		}
		return s.Copy(to, from, bytes)
	}
	// An aborted communicator is freed, so it must not be used: abort waits for this call.
	d.using.Lock()
	defer d.using.Unlock()
	if err := d.ended(); err != nil {
		return err
	}
	if err := d.sendMark(s, markAt, c.mark); err != nil {
		return err
	}
	if err := d.communicate(c, s, to, from); err != nil {
		return err
	}
	return d.sendMark(s, markAt, c.mark+markBytes)
}

// sendMark enqueues the copy of a mark to a place of the staging memory.
func (d *device) sendMark(s *libcuda.Stream, to int, mark uint64) error {
	return s.DownloadPinned(d.staging.Pinned, to, libcuda.Ptr(mark), markBytes)
}

// communicate enqueues NCCL's part of a collective.
func (d *device) communicate(c *collective, s *libcuda.Stream, to, from libcuda.Ptr) error {
	comm := d.among(c.group)
	switch c.kind {
	case allReduceSum:
		return comm.AllReduceSum(s, to, c.n)
	case allReduceMax:
		return comm.AllReduceMax(s, to, c.n)
	case reduceScatter:
		return comm.ReduceScatterSum(s, to, from, c.n)
	case allToAll:
		return comm.AllToAll(s, to, from, c.n)
	default:
		return comm.AllGather(s, to, from, c.n)
	}
}
