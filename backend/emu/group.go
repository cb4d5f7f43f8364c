package emu

import (
	"context"
	"fmt"
	"sync"

	"octet/backend"
	"octet/backend/emu/simd"
)

// group is where the in-process ranks meet. Each rank runs its programs from a
// goroutine of its own; in a collective every rank shows the others its
// memory, and each computes a share of the result, wherever that is stored.
//
// A meeting takes place for all ranks or for none. A rank that gives up, as
// its context ended or its backend was closed, ends all meetings for good,
// like a communicator that lost a member.
type group struct {
	mu      sync.Mutex
	arrived int
	ended   error         // why there are no more meetings
	closed  chan struct{} // closed when ended is set
	wake    []chan struct{}
	offers  []offer
	mail    [][]chan letter // [from][to]
}

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

func newGroup(n int) *group {
	g := &group{
		closed: make(chan struct{}),
		wake:   make([]chan struct{}, n),
		offers: make([]offer, n),
		mail:   make([][]chan letter, n),
	}
	for i := range n {
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
// them stops instead.
func (g *group) wait(ctx context.Context, rank int) error {
	g.mu.Lock()
	if g.ended != nil {
		defer g.mu.Unlock()
		return g.ended
	}
	if g.arrived++; g.arrived == len(g.wake) {
		g.arrived = 0
		for i, w := range g.wake {
			if i != rank {
				w <- struct{}{}
			}
		}
		g.mu.Unlock()
		return nil
	}
	g.mu.Unlock()
	select {
	case <-g.wake[rank]:
		return nil
	case <-ctx.Done():
	case <-g.closed:
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.wake[rank]: // the last rank came while this one was leaving
		return nil
	default:
		return g.leave(ctx, rank)
	}
}

// leave is called with the lock held by a rank that cannot wait any longer.
func (g *group) leave(ctx context.Context, rank int) error {
	err := ctx.Err()
	if err == nil {
		return g.ended
	}
	g.end(err, rank)
	return err
}

// close ends all meetings because of rank.
func (g *group) close(cause error, rank int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.end(cause, rank)
}

func (g *group) end(cause error, rank int) {
	if g.ended == nil {
		g.ended = fmt.Errorf("%w: rank %d left the group: %w", backend.ErrDeviceLost, rank, cause)
		close(g.closed)
	}
}

// interrupted is the error of a rank whose waiting for a message ended.
func (g *group) interrupted(ctx context.Context, rank int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.leave(ctx, rank)
}

// meet shows all ranks' offers to all. They stay valid until the ranks wait
// for each other again.
func (g *group) meet(ctx context.Context, rank int, mine offer) error {
	g.offers[rank] = mine
	if err := g.wait(ctx, rank); err != nil {
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
func (b *binder) collective(mine offer, tasks int, task func(worker, task int)) kernel {
	g, rank := b.group, b.rank
	return func(ctx context.Context) error {
		if err := g.meet(ctx, rank, mine); err != nil {
			return err
		}
		b.pool.run(tasks, task)
		return g.wait(ctx, rank)
	}
}

// allReduce deals chunks out to the ranks; a chunk's owner combines it in the
// memory of rank 0 and copies the result to the others.
func (b *binder) allReduce(o *backend.AllReduce) kernel {
	mine := offer{op: "allreduce (sum)", f32: b.f32(o.X)}
	first, combine := 1, simd.Add
	if o.Reduce == backend.ReduceMax {
		// A maximum of magnitudes begins with the magnitude of rank 0.
		mine.op, first, combine = "allreduce (max)", 0, simd.MaxMagnitudes
	}
	n, offers := len(mine.f32), b.group.offers
	chunks := parts(n, taskElems)
	own := parts(chunks-b.rank, len(offers))
	return b.collective(mine, own, func(_, task int) {
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

func (b *binder) reduceScatter(o *backend.ReduceScatter) (kernel, error) {
	mine, out, offers := offer{op: "reducescatter", f32: b.f32(o.X)}, b.f32(o.Out), b.group.offers
	n := len(out)
	if len(mine.f32) != n*len(offers) {
		return nil, fmt.Errorf("expected %d parts in X, one for each rank: X is %s, Out is %s", len(offers), o.X, o.Out)
	}
	return b.collective(mine, parts(n, taskElems), func(_, task int) {
		from := task * taskElems
		to := min(n, from+taskElems)
		part := b.rank * n
		copy(out[from:to], offers[0].f32[part+from:part+to])
		for _, other := range offers[1:] {
			simd.Add(out[from:to], other.f32[part+from:part+to])
		}
	}), nil
}

func (b *binder) allGather(o *backend.AllGather) (kernel, error) {
	mine, out, offers := offer{op: "allgather", bytes: b.bytes(o.X)}, b.bytes(o.Out), b.group.offers
	n := len(mine.bytes)
	if len(out) != n*len(offers) {
		return nil, fmt.Errorf("expected room for %d ranks in Out: X is %s, Out is %s", len(offers), o.X, o.Out)
	}
	return b.collective(mine, len(offers), func(_, rank int) {
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
		select {
		case <-l.free:
		case <-ctx.Done():
			return g.interrupted(ctx, rank)
		case <-g.closed:
			return g.interrupted(ctx, rank)
		}
		copy(l.bytes, x)
		select {
		case mail <- l:
			return nil
		case <-ctx.Done():
		case <-g.closed:
		}
		return g.interrupted(ctx, rank)
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
		select {
		case l := <-mail:
			defer func() { l.free <- struct{}{} }()
			if len(l.bytes) != len(out) {
				return fmt.Errorf("rank %d sent %d bytes, %s takes %d", o.Peer, len(l.bytes), o.Out, len(out))
			}
			copy(out, l.bytes)
			return nil
		case <-ctx.Done():
		case <-g.closed:
		}
		return g.interrupted(ctx, rank)
	}, nil
}
