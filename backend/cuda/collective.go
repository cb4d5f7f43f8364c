package cuda

import (
	"fmt"

	"octet/backend"
)

// collective is a collective of one node, of one or more ranks.
type collective struct {
	kind     collectiveKind
	from, to uint64
	n        int // this rank's share: FP32 elements for reductions, otherwise bytes

	// group has the ranks, as joined returns it; their number is 0 if unknown.
	group backend.Group
	ranks int

	// name is the collective's name in error messages. mark is the address of its two marks,
	// which the device copies to the host before and after the collective.
	name string
	mark uint64
}

// collectiveKind is the operation of a collective.
type collectiveKind uint8

const (
	allReduceSum  collectiveKind = iota
	allReduceMax                 // of the bit patterns of magnitudes
	reduceScatter                // every rank gets a part of the sum
	allGather
	allToAll
)

// joined returns the ranks that the collective of a node joins, of so many in all, and their number.
// The zero group is all ranks, also where the op lists them.
func joined(n *backend.Node, all int) (g backend.Group, ranks int, err error) {
	_, _, g = backend.Exchanged(n.Op)
	if ranks, err = g.Ranks(all); err != nil {
		return g, 0, unsupported(n, "%v", err)
	}
	if ranks == all {
		g = backend.Group{}
	}
	return g, ranks, nil
}

// implementCollective adds a collective. bind gets one that has its ranks only. They need no
// scratch memory, which calls of another stream may use at the same time.
func implementCollective[O backend.Op](bind func(*binder, *backend.Node, O, collective) ([]call, error), blockScaled ...string) struct{} {
	return implementNode(func(b *binder, n *backend.Node, o O) ([]call, error) {
		g, ranks, err := joined(n, b.ranks)
		if err != nil {
			return nil, err
		}
		return bind(b, n, o, collective{group: g, ranks: ranks})
	}, blockScaled...)
}

var _ = implementCollective((*binder).allReduce)

func (b *binder) allReduce(n *backend.Node, o *backend.AllReduce, c collective) ([]call, error) {
	c.kind, c.from, c.to, c.n = allReduceSum, b.address(o.X), b.address(o.X), o.X.Elems()
	if o.Reduce == backend.ReduceSum {
		return b.rendezvous(n, o.X, c), nil
	}
	// NCCL's maximum of floats drops NaN. The bit patterns of magnitudes, as signed
	// integers, are ordered like the magnitudes, with NaN above infinity.
	calls, err := b.shaped("magnitudes", o, extent(o.X)...)
	c.kind = allReduceMax
	return append(calls, b.rendezvous(n, o.X, c)...), err
}

var _ = implementCollective((*binder).reduceScatter)

func (b *binder) reduceScatter(n *backend.Node, o *backend.ReduceScatter, c collective) ([]call, error) {
	if c.ranks > 0 && o.X.Elems() != o.Out.Elems()*c.ranks {
		return nil, unsupported(n, "with %d ranks, X is %s and Out is %s", c.ranks, o.X, o.Out)
	}
	c.kind, c.from, c.to, c.n = reduceScatter, b.address(o.X), b.address(o.Out), o.Out.Elems()
	return b.rendezvous(n, o.X, c), nil
}

var _ = implementCollective((*binder).allGather, "X", "Out")

func (b *binder) allGather(n *backend.Node, o *backend.AllGather, c collective) ([]call, error) {
	if c.ranks > 0 && o.Out.Elems() != o.X.Elems()*c.ranks {
		return nil, unsupported(n, "with %d ranks, X is %s and Out is %s", c.ranks, o.X, o.Out)
	}
	c.kind, c.from, c.to, c.n = allGather, b.address(o.X), b.address(o.Out), int(o.X.Bytes())
	return b.rendezvous(n, o.X, c), nil
}

var _ = implementCollective((*binder).allToAll, "X", "Out")

func (b *binder) allToAll(n *backend.Node, o *backend.AllToAll, c collective) ([]call, error) {
	part, err := o.PartBytes(max(1, c.ranks))
	if err != nil {
		return nil, unsupported(n, "%v", err)
	}
	c.kind, c.from, c.to, c.n = allToAll, b.address(o.X), b.address(o.Out), int(part)
	return b.rendezvous(n, o.X, c), nil
}

// rendezvous gives a collective its name and mark.
func (b *binder) rendezvous(n *backend.Node, t *backend.Tensor, c collective) []call {
	c.name = fmt.Sprintf("%s of %s", n.Path(), t)
	b.marks = append(b.marks, c.name)
	last := uint64(2 * len(b.marks))
	c.mark = b.table([]uint64{last - 1, last})
	return []call{{collective: &c}}
}
