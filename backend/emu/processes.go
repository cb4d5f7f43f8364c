package emu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"octet/backend"
	"octet/backend/world"
)

// mpi is this process's connection to the other processes of its MPI world. MPI can be initialized
// once in a process, so it outlives devices: a change of recipe opens them again.
var mpi struct {
	sync.Mutex
	opened bool
	transport
	err   error
	group *world.Group // whose end stops the collectives; nil: none yet
}

// connect returns the connection of a rank to the other processes.
func connect(ctx context.Context, p world.Place) (transport, error) {
	mpi.Lock()
	defer mpi.Unlock()
	if !mpi.opened {
		mpi.opened = true
		mpi.transport, mpi.err = openMPI(ctx)
	}
	if t := mpi.transport; mpi.err == nil && (t.Rank() != p.Rank || t.Size() != p.Size) {
		return nil, fmt.Errorf("this process is rank %d of %d by %s, but MPI says rank %d of %d: start all ranks by one mpiexec of the MPI library that Octet loads, or by srun --mpi", p.Rank, p.Size, p.Launcher, t.Rank(), t.Size())
	}
	return mpi.transport, mpi.err
}

// joinProcesses returns the group of a rank whose other ranks are processes.
func joinProcesses(w *world.Group) (*group, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	go func() {
		select {
		case <-w.Done(): // a lost rank never initializes MPI
			cancel(w.Err())
		case <-ctx.Done():
		}
	}()
	t, err := connect(ctx, w.Place())
	if err != nil {
		return nil, fmt.Errorf("backend emu: %d ranks are processes, which exchange data over MPI; ranks of one process need no launcher (--ranks %[1]d): %w", w.Size(), err)
	}
	stopWith(w, t)
	return &group{Group: w, processes: newProcesses(&counted{transport: t})}, nil
}

// stopWith makes collectives fail once the group has lost a rank.
func stopWith(w *world.Group, t transport) {
	mpi.Lock()
	defer mpi.Unlock()
	if mpi.group == w {
		return
	}
	mpi.group = w
	go func() {
		<-w.Done()
		stopIfLost(w, t)
	}()
}

// stopIfLost stops the collectives if the group has lost a rank: they never complete without it.
func stopIfLost(w *world.Group, t transport) {
	if lost, ok := errors.AsType[*world.Lost](w.Err()); ok {
		t.Stop(lost)
	}
}

// overProcesses returns the kernel of a collective between processes. what names it.
func (b *binder) overProcesses(n *backend.Node, run kernel) kernel {
	g, what := b.group, n.Path()
	b.collectives = append(b.collectives, n.String())
	return func(ctx context.Context) error {
		if err := g.lost(); err != nil {
			return err
		}
		var err error
		if b.beside { // the node that waits for it counts the time
			err = run(ctx)
		} else {
			g.Waits(&what)
			begin := time.Now()
			err = run(ctx)
			g.AddWait(time.Since(begin))
			g.Continues()
		}
		if lost := g.lost(); lost != nil {
			return lost
		}
		return err
	}
}

// lost returns the error of a group that has ended; nil while it works.
func (g *group) lost() error {
	if err := g.Err(); err != nil {
		return fmt.Errorf("%w: %w", backend.ErrDeviceLost, err)
	}
	return nil
}

// BytesSent returns the bytes that collectives have sent to other processes. Ranks of one process
// share memory and send none.
func (d *device) BytesSent() int64 {
	if d.group.processes == nil {
		return 0
	}
	return d.group.processes.transport.(*counted).sent.Load()
}

// Exit ends the process with a status if it uses MPI, and returns at once if it does not. A
// launcher may end all ranks when it misses MPI's own end of a process.
func Exit(status int) {
	mpi.Lock()
	t, w := mpi.transport, mpi.group
	mpi.Unlock()
	if t == nil {
		return
	}
	stopIfLost(w, t)
	if t.Err() != nil {
		time.Sleep(linger(w))
		exitMPI(status)
	}
	const closing = 10 * time.Second // until all ranks have ended as they should
	ctx, cancel := context.WithTimeout(context.Background(), closing)
	defer cancel()
	if err := t.Close(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "octet: MPI: %v\n", err)
	}
	exitMPI(status)
}

// linger is how long a rank of a group that ended lives on, because launchers kill all ranks when
// the first one ends. If rank 0 is gone, rank 1 reports the error, and may notice the loss up to
// two seconds later than others.
func linger(w *world.Group) time.Duration {
	lost, ok := errors.AsType[*world.Lost](w.Err())
	if ok && lost.Rank == 0 && lost.Gone && w.Rank() > 1 {
		return 3 * time.Second
	}
	return time.Second
}
