package emu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"octet/backend"
	"octet/backend/emu/simd"
)

// group is where the in-process ranks meet. Each rank runs its programs from a
// goroutine of its own; in a collective every rank shows the others its
// memory, and each computes a share of the result, wherever that is stored.
//
// A meeting takes place for all ranks or for none. A rank that gives up, as it
// failed, its context ended or its backend was closed, ends all meetings for good,
// like a communicator that lost a member. So does one for which the others wait in
// vain: of whatever hangs, or has returned, nothing else would tell.
type group struct {
	patience time.Duration
	done     []atomic.Int64 // ops, by rank
	timers   []*time.Timer  // by rank

	mu      sync.Mutex
	arrived int
	here    []bool        // by rank: it waits for the others
	last    []string      // by rank: the collective that it came to last
	ended   error         // why there are no more meetings
	closed  chan struct{} // closed when ended is set
	wake    []chan struct{}
	offers  []offer
	mail    [][]chan letter // [from][to]
}

// timeoutVariable is how long ranks wait for one that does not end a single op
// meanwhile: on a CPU a large model takes hours for a step, and its ranks need not be
// equally fast.
const timeoutVariable = "OCTET_EMU_TIMEOUT"

// looks is how often a rank that waits looks whether the others get on, in the time
// that they have. A process that was stopped, or the machine, finds all of that time
// gone when it goes on, and has lost one look.
const looks = 10

// offer is what a rank brings to a collective.
type offer struct {
	op    string
	f32   []float32
	bytes []byte
}

func (o offer) size() int { return max(len(o.f32), len(o.bytes)) }

// letter is a message under way; its buffer returns through free.
type letter struct {
	bytes []byte
	free  chan struct{}
}

// mailboxSize is how many messages to one rank may be under way; a further
// Send waits.
const mailboxSize = 64

func newGroup(n int, patience time.Duration) *group {
	g := &group{
		patience: patience,
		done:     make([]atomic.Int64, n),
		timers:   make([]*time.Timer, n),
		here:     make([]bool, n),
		last:     make([]string, n),
		closed:   make(chan struct{}),
		wake:     make([]chan struct{}, n),
		offers:   make([]offer, n),
		mail:     make([][]chan letter, n),
	}
	for i := range n {
		g.timers[i] = time.NewTimer(patience)
		g.timers[i].Stop()
		// One token is enough: a rank takes it before it arrives again.
		g.wake[i] = make(chan struct{}, 1)
		g.mail[i] = make([]chan letter, n)
		for j := range n {
			g.mail[i][j] = make(chan letter, mailboxSize)
		}
	}
	return g
}

// wait returns nil once all ranks wait, and an error, on every rank, if one of
// them stops instead. what is the collective.
func (g *group) wait(ctx context.Context, rank int, what string) error {
	g.mu.Lock()
	if g.ended != nil {
		defer g.mu.Unlock()
		return g.ended
	}
	g.here[rank], g.last[rank] = true, what
	if g.arrived++; g.arrived == len(g.wake) {
		g.arrived = 0
		for i, w := range g.wake {
			g.here[i] = false
			if i != rank {
				w <- struct{}{}
			}
		}
		g.mu.Unlock()
		return nil
	}
	g.mu.Unlock()
	_, err := receive(ctx, g, rank, anyRank, g.wake[rank])
	return err
}

// anyRank stands for all those that have not come.
const anyRank = -1

func receive[T any](ctx context.Context, g *group, rank, other int, from <-chan T) (x T, err error) {
	return exchange(ctx, g, rank, other, from, nil, x)
}

// exchange waits until something comes from another rank or x can go to it, whichever
// channel is not nil, and not longer than the group does.
func exchange[T any](ctx context.Context, g *group, rank, other int, from <-chan T, to chan<- T, x T) (got T, err error) {
	timer := g.timers[rank]
	defer timer.Stop()
	seen, late := int64(-1), 0
	for err == nil {
		timer.Reset(g.patience / looks)
		select {
		case got = <-from:
			return got, nil
		case to <- x:
			return got, nil
		case <-ctx.Done():
			err = ctx.Err()
		case <-g.closed:
			err = errClosed
		case <-timer.C:
			if done := g.progress(); done != seen {
				seen, late = done, 0
			} else if late++; late == looks {
				err = errLate
			}
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case got = <-from: // it came while this rank was leaving
		return got, nil
	default:
	}
	switch {
	case errors.Is(err, errClosed):
		return got, g.ended
	case errors.Is(err, errLate):
		g.end(g.absent(rank, other))
		return got, g.ended
	}
	g.end(left(rank, err))
	return got, err
}

// Why exchange ends, beside its context.
var errClosed, errLate = errors.New("closed"), errors.New("late")

// progress is how many ops all ranks have run: those that wait run none.
func (g *group) progress() (n int64) {
	for i := range g.done {
		n += g.done[i].Load()
	}
	return n
}

// absent names those that a rank waits for. It is called with the lock held.
func (g *group) absent(rank, other int) error {
	var names []string
	for r, here := range g.here {
		if r != rank && (r == other || other == anyRank && !here) {
			names = append(names, fmt.Sprintf("rank %d, whose last collective is %s", r, cmp.Or(g.last[r], "none")))
		}
	}
	return fmt.Errorf("%w: waited %v for %s (%s gives more time)", backend.ErrDeviceLost, g.patience, strings.Join(names, ", and "), timeoutVariable)
}

// close ends all meetings because of rank. One rank alone waits for nobody, and can
// go on.
func (g *group) close(cause error, rank int) {
	if len(g.wake) == 1 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.end(left(rank, cause))
}

func left(rank int, cause error) error {
	return fmt.Errorf("%w: rank %d left the group: %w", backend.ErrDeviceLost, rank, cause)
}

// end is called with the lock held.
func (g *group) end(why error) {
	if g.ended == nil {
		g.ended = why
		close(g.closed)
	}
}

// meet shows all ranks' offers to all. They stay valid until the ranks wait
// for each other again.
func (g *group) meet(ctx context.Context, rank int, what string, mine offer) error {
	g.offers[rank] = mine
	if err := g.wait(ctx, rank, what); err != nil {
		return err
	}
	first := g.offers[0]
	for r, other := range g.offers {
		if other.op != first.op || other.size() != first.size() {
			return fmt.Errorf("the ranks' programs differ: rank 0 is at %s of %d, rank %d at %s of %d",
				first.op, first.size(), r, other.op, other.size())
		}
	}
	return nil
}

// collective is a kernel that meets the other ranks, runs this rank's share of
// the tasks, and returns when all ranks have run theirs.
func (b *binder) collective(n *backend.Node, mine offer, tasks int, task func(worker, task int)) kernel {
	g, rank, what := b.group, b.rank, n.Path()
	return func(ctx context.Context) error {
		if err := g.meet(ctx, rank, what, mine); err != nil {
			return err
		}
		b.pool.run(tasks, task)
		return g.wait(ctx, rank, what)
	}
}

// allReduce deals chunks out to the ranks; a chunk's owner combines it in the
// memory of rank 0 and copies the result to the others.
func (b *binder) allReduce(node *backend.Node, o *backend.AllReduce) kernel {
	mine := offer{op: "allreduce (sum)", f32: b.f32(o.X)}
	first, combine := 1, simd.Add
	if o.Reduce == backend.ReduceMax {
		// A maximum of magnitudes begins with the magnitude of rank 0.
		mine.op, first, combine = "allreduce (max)", 0, simd.MaxMagnitudes
	}
	n, offers := len(mine.f32), b.group.offers
	chunks := parts(n, taskElems)
	own := parts(chunks-b.rank, len(offers))
	return b.collective(node, mine, own, func(_, task int) {
		from := (task*len(offers) + b.rank) * taskElems
		to := min(n, from+taskElems)
		result := offers[0].f32[from:to]
		for _, other := range offers[first:] {
			combine(result, other.f32[from:to])
		}
		for _, other := range offers[1:] {
			copy(other.f32[from:to], result)
		}
	})
}

func (b *binder) reduceScatter(node *backend.Node, o *backend.ReduceScatter) (kernel, error) {
	mine, out, offers := offer{op: "reducescatter", f32: b.f32(o.X)}, b.f32(o.Out), b.group.offers
	n := len(out)
	if len(mine.f32) != n*len(offers) {
		return nil, fmt.Errorf("expected %d parts in X, one for each rank: X is %s, Out is %s", len(offers), o.X, o.Out)
	}
	return b.collective(node, mine, parts(n, taskElems), func(_, task int) {
		from := task * taskElems
		to := min(n, from+taskElems)
		part := b.rank * n
		copy(out[from:to], offers[0].f32[part+from:part+to])
		for _, other := range offers[1:] {
			simd.Add(out[from:to], other.f32[part+from:part+to])
		}
	}), nil
}

func (b *binder) allGather(node *backend.Node, o *backend.AllGather) (kernel, error) {
	mine, out, offers := offer{op: "allgather", bytes: b.bytes(o.X)}, b.bytes(o.Out), b.group.offers
	n := len(mine.bytes)
	if len(out) != n*len(offers) {
		return nil, fmt.Errorf("expected room for %d ranks in Out: X is %s, Out is %s", len(offers), o.X, o.Out)
	}
	return b.collective(node, mine, len(offers), func(_, rank int) {
		copy(out[rank*n:(rank+1)*n], offers[rank].bytes)
	}), nil
}

// mailbox is where messages from one rank to another wait.
func (b *binder) mailbox(from, to int) (chan letter, error) {
	n := len(b.group.mail)
	if from == to || from >= n || to >= n {
		return nil, fmt.Errorf("rank %d cannot exchange a message with rank %d: there are %d ranks", b.rank, from+to-b.rank, n)
	}
	return b.group.mail[from][to], nil
}

// send copies X and goes on: two ranks may send to each other before either
// receives.
func (b *binder) send(o *backend.Send) (kernel, error) {
	mail, err := b.mailbox(b.rank, o.Peer)
	if err != nil {
		return nil, err
	}
	x := b.bytes(o.X)
	l := letter{make([]byte, len(x)), make(chan struct{}, 1)}
	l.free <- struct{}{}
	g, rank := b.group, b.rank
	return func(ctx context.Context) error {
		if _, err := receive(ctx, g, rank, o.Peer, l.free); err != nil {
			return err
		}
		copy(l.bytes, x)
		_, err := exchange(ctx, g, rank, o.Peer, nil, mail, l)
		return err
	}, nil
}

func (b *binder) recv(o *backend.Recv) (kernel, error) {
	mail, err := b.mailbox(o.Peer, b.rank)
	if err != nil {
		return nil, err
	}
	out := b.bytes(o.Out)
	g, rank := b.group, b.rank
	return func(ctx context.Context) error {
		l, err := receive(ctx, g, rank, o.Peer, mail)
		if err != nil {
			return err
		}
		defer func() { l.free <- struct{}{} }()
		if len(l.bytes) != len(out) {
			return fmt.Errorf("rank %d sent %d bytes, %s takes %d", o.Peer, len(l.bytes), o.Out, len(out))
		}
		copy(out, l.bytes)
		return nil
	}, nil
}
