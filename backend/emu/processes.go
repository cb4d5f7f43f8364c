package emu

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
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
	err error
}

// processesOf returns the connection to the ranks of a group that are processes.
func processesOf(ctx context.Context) (transport, error) {
	mpi.Lock()
	defer mpi.Unlock()
	if !mpi.opened {
		mpi.opened = true
		mpi.transport, mpi.err = openMPI(ctx)
	}
	return mpi.transport, mpi.err
}

// joinProcesses returns the group of a rank whose other ranks are processes.
func joinProcesses(w *world.Group) (*group, error) {
	t, err := processesOf(context.Background())
	if err != nil {
		return nil, fmt.Errorf("backend emu: %d ranks are processes, which exchange data over MPI; ranks of one process need no launcher (--ranks %[1]d): %w", w.Size(), err)
	}
	if t.Rank() != w.Rank() || t.Size() != w.Size() {
		return nil, fmt.Errorf("backend emu: this process is rank %d of %d, but MPI says rank %d of %d: start all ranks by one mpiexec, or by srun --mpi", w.Rank(), w.Size(), t.Rank(), t.Size())
	}
	go func() {
		<-w.Done()
		if lost, ok := errors.AsType[*world.Lost](w.Err()); ok {
			t.Stop(lost) // a collective without the lost rank never completes
		}
	}()
	return &group{Group: w, processes: newProcesses(t)}, nil
}

// overProcesses returns the kernel of a collective between processes. what names it.
func (b *binder) overProcesses(n *backend.Node, run kernel) kernel {
	g, what := b.group, n.Path()
	text := fmt.Sprintf("%s: %s", what, n)
	for _, o := range n.Operands() {
		text += fmt.Sprint(" ", o.Tensor)
	}
	b.collectives = append(b.collectives, text)
	return func(ctx context.Context) error {
		if err := g.lost(); err != nil {
			return err
		}
		g.Waits(&what)
		err := run(ctx)
		g.Continues()
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

// checkCollectives ends the group unless the programs of all processes have the same collectives,
// those that were bound since the last check: MPI compares neither their kinds nor their sizes.
func (d *device) checkCollectives() error {
	if d.group.processes == nil {
		return nil
	}
	text, err := json.Marshal(d.collectives)
	if err != nil {
		return err
	}
	d.collectives = nil
	return d.group.Compare(context.Background(), world.Identity{{Name: "list of collectives", Value: string(text)}})
}

// announcement is what rank 0 tells the processes of MPI.
type announcement struct {
	Address string
	Secret  []byte
	Error   string
}

// announcedBytes is the size of an announcement's JSON, padded.
const announcedBytes = 1024

// Rendezvous agrees on the address of the control plane, and on a secret, by MPI, for launchers
// that tell neither. Rank 0 gets the listener at the address.
func Rendezvous(ctx context.Context, p world.Place) (address string, secret world.Secret, l *world.Listener, err error) {
	t, err := processesOf(ctx)
	if err != nil {
		return "", nil, nil, fmt.Errorf("%s tells no address of rank 0 (give --rendezvous HOST:PORT), and MPI cannot: %w", p.Launcher, err)
	}
	var m announcement
	text := make([]byte, announcedBytes)
	if p.Rank == 0 {
		m.Secret = make([]byte, 32)
		_, _ = rand.Read(m.Secret) // never fails
		if l, m.Address, err = world.Listen(p.LocalSize != p.Size); err != nil {
			m.Error = err.Error()
		}
		own, err := json.Marshal(m)
		if err != nil {
			return "", nil, nil, err
		}
		copy(text, own)
	}
	if err := broadcast(ctx, t, text); err != nil {
		return "", nil, nil, err
	}
	if err := json.Unmarshal(bytes.TrimRight(text, "\x00"), &m); err != nil {
		return "", nil, nil, err
	}
	if m.Error != "" {
		return "", nil, nil, errors.New(m.Error)
	}
	return m.Address, m.Secret, l, nil
}

// Exit ends the process with a status if it uses MPI, and returns at once if it does not. A
// launcher may end all ranks when it misses MPI's own end of a process.
func Exit(status int) {
	mpi.Lock()
	t := mpi.transport
	mpi.Unlock()
	if t == nil {
		return
	}
	const (
		closing = 10 * time.Second // until all ranks have ended as they should
		linger  = time.Second      // for other ranks to print their errors
	)
	if status != 0 {
		time.Sleep(linger)
	}
	ctx, cancel := context.WithTimeout(context.Background(), closing)
	defer cancel()
	if err := t.Close(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "octet: MPI: %v\n", err)
	}
	exitMPI(status)
}
