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

// Collectives run on the stream of all other calls; the queues of their nodes are ignored.

var _ = implementNode((*binder).allReduce)

func (b *binder) allReduce(n *backend.Node, o *backend.AllReduce) ([]call, error) {
	c := collective{kind: allReduceSum, from: b.address(o.X), to: b.address(o.X), n: o.X.Elems()}
	if o.Reduce == backend.ReduceSum {
		return b.rendezvous(n, o.X, c), nil
	}
	// NCCL's maximum of floats drops NaN. The bit patterns of magnitudes, as signed
	// integers, are ordered like the magnitudes, with NaN above infinity.
	calls, err := b.shaped("magnitudes", o, extent(o.X)...)
	c.kind = allReduceMax
	return append(calls, b.rendezvous(n, o.X, c)...), err
}

var _ = implementNode((*binder).reduceScatter)

func (b *binder) reduceScatter(n *backend.Node, o *backend.ReduceScatter) ([]call, error) {
	if b.ranks > 0 && o.X.Elems() != o.Out.Elems()*b.ranks {
		return nil, unsupported(n, "with %d ranks, X is %s and Out is %s", b.ranks, o.X, o.Out)
	}
	return b.rendezvous(n, o.X, collective{kind: reduceScatter, from: b.address(o.X), to: b.address(o.Out), n: o.Out.Elems()}), nil
}

var _ = implementNode((*binder).allGather, "X", "Out")

func (b *binder) allGather(n *backend.Node, o *backend.AllGather) ([]call, error) {
	if b.ranks > 0 && o.Out.Elems() != o.X.Elems()*b.ranks {
		return nil, unsupported(n, "with %d ranks, X is %s and Out is %s", b.ranks, o.X, o.Out)
	}
	return b.rendezvous(n, o.X, collective{kind: allGather, from: b.address(o.X), to: b.address(o.Out), n: int(o.X.Bytes())}), nil
}

var _ = implementNode((*binder).allToAll, "X", "Out")

func (b *binder) allToAll(n *backend.Node, o *backend.AllToAll) ([]call, error) {
	part, err := o.PartBytes(max(1, b.ranks))
	if err != nil {
		return nil, unsupported(n, "%v", err)
	}
	return b.rendezvous(n, o.X, collective{kind: allToAll, from: b.address(o.X), to: b.address(o.Out), n: int(part)}), nil
}

// rendezvous gives a collective its name and mark.
func (b *binder) rendezvous(n *backend.Node, t *backend.Tensor, c collective) []call {
	c.name = fmt.Sprintf("%s of %s", n.Path(), t)
	b.marks = append(b.marks, c.name)
	last := uint64(2 * len(b.marks))
	c.mark = b.table([]uint64{last - 1, last})
	return []call{{collective: &c}}
}
