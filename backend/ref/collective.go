package ref

import (
	"context"
	"fmt"
	"sync"

	"octet/backend"
)

// group connects the ranks of one process.
type group struct {
	ranks int
	links [][]chan []float64 // [from][to]; one message may be in flight on each

	mu     sync.Mutex
	now    *rendezvous
	broken chan struct{} // closed by the first failure
	err    error         // the first failure; set before broken is closed
}

// rendezvous is one collective: each rank contributes a part and gets all parts.
type rendezvous struct {
	what    string
	parts   [][]float64
	missing int
	done    chan struct{}
}

func newGroup(ranks int) *group {
	g := &group{ranks: ranks, broken: make(chan struct{}), links: make([][]chan []float64, ranks)}
	for from := range g.links {
		for range ranks {
			g.links[from] = append(g.links[from], make(chan []float64, 1))
		}
	}
	return g
}

// fail makes every current and later wait of a rank return err; later calls have no
// effect. The ranks are then out of step and must be opened again. A group of one rank
// never waits, and stays usable.
func (g *group) fail(err error) {
	if g.ranks == 1 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		g.err = err
		close(g.broken)
	}
}

// exchange contributes part and waits until all ranks have contributed theirs. what
// describes the collective; exchange fails if it differs between ranks.
func (g *group) exchange(ctx context.Context, rank int, what string, part []float64) ([][]float64, error) {
	g.mu.Lock()
	if g.now == nil {
		g.now = &rendezvous{what: what, parts: make([][]float64, g.ranks), missing: g.ranks, done: make(chan struct{})}
	}
	m := g.now
	if m.what != what {
		g.mu.Unlock()
		return nil, fmt.Errorf("ranks run different collectives: rank %d is at %s, another rank at %s", rank, what, m.what)
	}
	m.parts[rank] = part
	if m.missing--; m.missing == 0 {
		g.now = nil
		close(m.done)
	}
	g.mu.Unlock()

	select {
	case <-m.done:
		return m.parts, nil
	case <-g.broken:
		return nil, g.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (b *Backend) checkPeer(op backend.Op) error {
	peer := 0
	switch o := op.(type) {
	case *backend.Send:
		peer = o.Peer
	case *backend.Recv:
		peer = o.Peer
	case *backend.ReduceScatter:
		if o.X.Elems() != o.Out.Elems()*b.group.ranks {
			return fmt.Errorf("there are %d ranks, X is %s and Out is %s", b.group.ranks, o.X, o.Out)
		}
	case *backend.AllGather:
		if o.Out.Elems() != o.X.Elems()*b.group.ranks {
			return fmt.Errorf("there are %d ranks, X is %s and Out is %s", b.group.ranks, o.X, o.Out)
		}
	default: // any number of ranks
	}
	if peer >= b.group.ranks {
		return fmt.Errorf("there are %d ranks, the peer is rank %d", b.group.ranks, peer)
	}
	return nil
}

func (b *Backend) collective(ctx context.Context, op backend.Op) error {
	exchange := func(x *backend.Tensor) ([][]float64, error) {
		return b.group.exchange(ctx, b.rank, fmt.Sprintf("%T of %d elements", op, x.Elems()), b.stored(x))
	}
	switch o := op.(type) {
	case *backend.AllReduce:
		parts, err := exchange(o.X)
		if err != nil {
			return err
		}
		b.store(o.X, reduce(parts, o.Reduce))
	case *backend.ReduceScatter:
		parts, err := exchange(o.X)
		if err != nil {
			return err
		}
		n := o.Out.Elems()
		b.store(o.Out, reduce(parts, backend.ReduceSum)[b.rank*n:(b.rank+1)*n])
	case *backend.AllGather:
		parts, err := exchange(o.X)
		if err != nil {
			return err
		}
		var all []float64
		for _, part := range parts {
			all = append(all, part...)
		}
		b.put(o.Out, all)
	case *backend.Send:
		select {
		case b.group.links[b.rank][o.Peer] <- b.stored(o.X):
		case <-b.group.broken:
			return b.group.err
		case <-ctx.Done():
			return ctx.Err()
		}
	case *backend.Recv:
		select {
		case x := <-b.group.links[o.Peer][b.rank]:
			if len(x) != o.Out.Elems() {
				return fmt.Errorf("rank %d sent %d elements for %s", o.Peer, len(x), o.Out)
			}
			b.put(o.Out, x)
		case <-b.group.broken:
			return b.group.err
		case <-ctx.Done():
			return ctx.Err()
		}
	default:
		return fmt.Errorf("%T is not a collective", op)
	}
	return nil
}

// reduce returns the sum or amax of the ranks' parts, in ascending order of rank.
func reduce(parts [][]float64, how backend.Reduction) []float64 {
	out := make([]float64, len(parts[0]))
	for rank, part := range parts {
		for i, x := range part {
			switch {
			case how == backend.ReduceMax:
				out[i] = maxAmax(out[i], x)
			case rank == 0:
				out[i] = x
			default:
				out[i] += x
			}
		}
	}
	return out
}
