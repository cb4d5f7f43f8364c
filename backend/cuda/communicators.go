//go:build cuda && cgo && linux

package cuda

import (
	"context"
	"fmt"
	"sync"

	"octet/backend"
	"octet/csrc/libcuda"
)

// communicators are NCCL's communicators of one rank. The first one joins all ranks. Load adds one
// for each group of ranks that programs have collectives of. All ranks have them in the same order.
type communicators struct {
	growing sync.Mutex // guards comms, which the goroutine of a member reads
	comms   []communicator
}

// communicator is that of a group of ranks.
type communicator struct {
	*libcuda.Comm
	of backend.Group // as joined returns it
}

// connected returns the communicators.
func (c *communicators) connected() []communicator {
	c.growing.Lock()
	defer c.growing.Unlock()
	return c.comms // elements do not change
}

// among returns the communicator of a group, nil if there is none.
func (c *communicators) among(g backend.Group) *libcuda.Comm {
	for _, x := range c.connected() {
		if x.of == g {
			return x.Comm
		}
	}
	return nil
}

// err returns an asynchronous error of a communicator.
func (c *communicators) err() error {
	for _, x := range c.connected() {
		if err := x.Err(); err != nil {
			return err
		}
	}
	return nil
}

// abort aborts all communicators at once: an abort may return only after the device has left the
// collectives of another communicator.
func (c *communicators) abort() {
	var all sync.WaitGroup
	for _, x := range c.connected() {
		all.Go(func() { _ = x.Abort() }) // the group's error is the cause
	}
	all.Wait()
}

// destroy destroys the communicators one by one. Destroy returns when all ranks of a communicator
// have called it.
func (c *communicators) destroy() {
	for _, x := range c.connected() {
		_ = x.Destroy()
	}
}

// connectGroups connects the groups of ranks that programs have collectives of. All ranks call it,
// with equal programs.
func (d *device) connectGroups(programs []*backend.Program) error {
	if d.member == nil {
		return nil
	}
	for _, p := range programs {
		for _, n := range p.Nodes() {
			if _, whole, _ := backend.Exchanged(n.Op); whole == nil {
				continue
			}
			g, ranks, err := joined(n, d.group.Size())
			if err == nil && ranks > 1 && d.among(g) == nil {
				err = d.connect(g)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// connect makes the communicator of a group of ranks. All ranks call it.
func (d *device) connect(of backend.Group) error {
	// Exchange, Connect and their errors have no other deadline than the group's.
	world, what := d.group, "NCCL's unique id"
	ranks, index, who := world.Size(), of.Index(world.Rank()), fmt.Sprintf("rank %d of %d", world.Rank(), world.Size())
	if !of.All() {
		ranks = of.Size
		what += fmt.Sprintf(" for each group of %s", of)
		who += fmt.Sprintf(", in a group of %s", of)
	}
	var id []byte
	var err error
	if index == 0 {
		if id, err = libcuda.UniqueID(d.Version); err != nil {
			return fmt.Errorf("connect %d GPUs: %w (set NCCL_DEBUG=WARN for details)", ranks, err)
		}
	}
	ids, err := world.Exchange(context.Background(), what, id)
	if err != nil {
		return fmt.Errorf("cuda: %w: %w", backend.ErrDeviceLost, err)
	}
	var comm *libcuda.Comm
	err = world.Connect("ncclCommInitRank", func() (err error) {
		comm, err = libcuda.NewComm(d.gpu.Device, ids[of.Member(world.Rank(), 0)], index, ranks)
		return err
	})
	d.growing.Lock()
	defer d.growing.Unlock()
	if ended := world.Err(); ended != nil { // then an abort does not see this communicator
		d.connecting = true
		return fmt.Errorf("cuda: %w: %w", backend.ErrDeviceLost, ended)
	}
	if err != nil {
		return fmt.Errorf("connect GPU %s as %s: %w (set NCCL_DEBUG=WARN for details)", d.Name, who, err)
	}
	d.comms = append(d.comms, communicator{comm, of})
	return nil
}
