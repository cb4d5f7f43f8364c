//go:build gaudi && cgo && linux

package gaudi

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"octet/backend"
	"octet/backend/world"
	"octet/csrc/libsynapse"
)

// member connects this process's device to those of the other ranks. It outlives the backends
// that a change of recipe closes and opens. A goroutine tells the group the last collective that
// the device has reached, and whether the host waits for the device, because a host that waits
// for its device may wait for all other ranks. It samples the device's marks more often to
// measure the device's time in collectives, without a call to the device.
//
// HCCL has no call that ends a collective: if the group ends, the process must end.
type member struct {
	group *world.Group
	comms []communicator // that of all ranks first
	stop  chan struct{}  // closed to end the goroutine
	ended chan struct{}  // closed by the goroutine, which reads memory of the device

	mu         sync.Mutex
	connecting bool // in hcclCommInitRank: the goroutine does not tell whether the host waits
}

// communicator is that of the ranks of a group, of which this one is a member.
type communicator struct {
	of backend.Group
	*libsynapse.Comm
}

// comm returns the communicator of a group, nil before it is connected.
func (m *member) comm(g backend.Group) *libsynapse.Comm {
	for _, c := range m.comms {
		if c.of == g {
			return c.Comm
		}
	}
	return nil
}

const (
	watchEvery = 200 * time.Millisecond
	// sampleEvery is short against ten steps, over which the times are averaged. A sample is a read
	// of host memory.
	sampleEvery = 5 * time.Millisecond
)

func (l *local) uniqueID() ([]byte, error) { return libsynapse.UniqueID() }

func (l *local) join(g *world.Group) error {
	if l.rank != nil && l.rank.group == g {
		return nil
	}
	m := &member{group: g, stop: make(chan struct{}), ended: make(chan struct{})}
	if err := l.connectGroup(m, backend.Group{}); err != nil {
		return err
	}
	l.rank = m
	go m.watch(l)
	return nil
}

func (l *local) connect(groups []backend.Group) error {
	return l.locked(func() error {
		for _, g := range groups {
			if l.rank.comm(g) != nil {
				continue
			}
			if err := l.connectGroup(l.rank, g); err != nil {
				return err
			}
		}
		return nil
	})
}

// connectGroup makes the communicator of each group of ranks. HCCL's coordinator runs in the
// process that makes the id, the group's first rank.
func (l *local) connectGroup(m *member, g backend.Group) error {
	// Exchange and Connect have no other deadline than the group's.
	ctx, w := context.Background(), m.group
	ranks, err := g.Ranks(w.Size())
	if err != nil {
		return err
	}
	var id []byte
	index := g.Index(w.Rank())
	if index == 0 {
		if id, err = l.uniqueID(); err != nil {
			return fmt.Errorf("create the id of a communicator: %w", unreachable(err))
		}
	}
	ids, err := w.Exchange(ctx, "HCCL's unique id", id)
	if err != nil {
		return fmt.Errorf("%w: %w", backend.ErrDeviceLost, err)
	}
	m.setConnecting(true)
	defer m.setConnecting(false)
	var comm *libsynapse.Comm
	err = w.Connect("hcclCommInitRank", func() (err error) {
		comm, err = l.NewComm(ids[g.Member(w.Rank(), 0)], ranks, index)
		return err
	})
	if ended := w.Err(); ended != nil {
		l.lost.Store(true) // hcclCommInitRank may still use the device
		return fmt.Errorf("%w: %w", backend.ErrDeviceLost, ended)
	}
	if err != nil {
		return fmt.Errorf("join rank %d of %d to %s: %w", w.Rank(), w.Size(), g, unreachable(err))
	}
	m.comms = append(m.comms, communicator{g, comm})
	return nil
}

// watch runs until the member is closed or the group has ended.
func (m *member) watch(l *local) {
	defer close(m.ended)
	ticker, samples := time.NewTicker(watchEvery), time.NewTicker(sampleEvery)
	defer ticker.Stop()
	defer samples.Stop()
	for last := time.Now(); ; {
		select {
		case <-m.stop:
			return
		case <-m.group.Done():
			if _, lost := errors.AsType[*world.Lost](m.group.Err()); lost { // else all ranks have left it
				l.lost.Store(true) // pending work waits for the missing one forever
			}
			return
		case now := <-samples.C:
			if l.mark()%2 == 1 { // in a collective
				m.group.AddWait(now.Sub(last))
			}
			last = now
			continue
		case <-ticker.C:
		}
		mark := l.mark()
		m.group.AtOp(int(mark))
		m.tellWait(l, mark)
	}
}

// tellWait tells the group whether the host waits for the device.
func (m *member) tellWait(l *local, mark uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.connecting:
	case l.waiting.Load() && mark > 0:
		name := l.collectives.name(mark)
		m.group.Waits(&name)
	default:
		m.group.Continues()
	}
}

func (m *member) setConnecting(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.connecting = on
}

func (m *member) close() error {
	close(m.stop)
	<-m.ended
	var errs []error
	for _, c := range m.comms {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// unreachable adds what to do to an error of HCCL's network.
func unreachable(err error) error {
	if e := (*libsynapse.Error)(nil); errors.As(err, &e) {
		return fmt.Errorf("%w; "+hintNetwork, err)
	}
	return err
}
