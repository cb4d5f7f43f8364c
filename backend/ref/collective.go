package ref

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"octet/backend"
)

// group connects the ranks of one process.
type group struct {
	ranks int

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
	return &group{ranks: ranks, broken: make(chan struct{})}
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

// implementCollective adds a collective: every rank contributes the values of in, finish
// stores the result of all ranks' contributions,
// and check refuses operands that do not fit the number of ranks.
func implementCollective[O backend.Op](in func(O) *backend.Tensor, finish func(b *Backend, o O, parts [][]float64), check func(b *Backend, o O) error) struct{} {
	var op O
	return ops.Add(op, row{
		run: func(ctx context.Context, b *Backend, n *backend.Node) error {
			x := in(n.Op.(O))
			parts, err := b.group.exchange(ctx, b.rank, fmt.Sprintf("%T of %d elements", n.Op, x.Elems()), b.stored(x))
			if err == nil {
				finish(b, n.Op.(O), parts)
			}
			return err
		},
		check: func(b *Backend, op backend.Op) error { return check(b, op.(O)) },
	})
}

var _ = implementCollective(
	func(o *backend.AllReduce) *backend.Tensor { return o.X },
	func(b *Backend, o *backend.AllReduce, parts [][]float64) { b.store(o.X, reduce(parts, o.Reduce)) },
	func(*Backend, *backend.AllReduce) error { return nil },
)

var _ = implementCollective(
	func(o *backend.ReduceScatter) *backend.Tensor { return o.X },
	func(b *Backend, o *backend.ReduceScatter, parts [][]float64) {
		n := o.Out.Elems()
		b.store(o.Out, reduce(parts, backend.ReduceSum)[b.rank*n:(b.rank+1)*n])
	},
	func(b *Backend, o *backend.ReduceScatter) error { return b.checkShards(o.Out, o.X, o.X, o.Out) },
)

var _ = implementCollective(
	func(o *backend.AllGather) *backend.Tensor { return o.X },
	func(b *Backend, o *backend.AllGather, parts [][]float64) { b.put(o.Out, slices.Concat(parts...)) },
	func(b *Backend, o *backend.AllGather) error { return b.checkShards(o.X, o.Out, o.X, o.Out) },
)

// checkShards refuses a whole that is not one shard for each rank.
func (b *Backend) checkShards(shard, whole, x, out *backend.Tensor) error {
	if whole.Elems() != shard.Elems()*b.group.ranks {
		return fmt.Errorf("there are %d ranks, X is %s and Out is %s", b.group.ranks, x, out)
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
