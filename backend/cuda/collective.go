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
	peer     int // of Send and Recv

	// name is the collective's name in error messages. mark is the address of its number,
	// counted from 1, which the device copies to the host when it reaches the collective.
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
	send
	receive
)

// collective binds a collective. It runs on the stream of all other calls; the queue of
// its node is ignored.
func (b *binder) collective(n *backend.Node) ([]call, error) {
	switch o := n.Op.(type) {
	case *backend.AllReduce:
		c := collective{kind: allReduceSum, from: b.address(o.X), to: b.address(o.X), n: o.X.Elems()}
		if o.Reduce == backend.ReduceSum {
			return b.rendezvous(n, o.X, c), nil
		}
		// NCCL's maximum of floats drops NaN. The bit patterns of magnitudes, as signed
		// integers, are ordered like the magnitudes, with NaN above infinity.
		calls, err := b.plain("magnitudes", o, o.X)
		c.kind = allReduceMax
		return append(calls, b.rendezvous(n, o.X, c)...), err
	case *backend.ReduceScatter:
		if b.ranks > 0 && o.X.Elems() != o.Out.Elems()*b.ranks {
			return nil, unsupported(n, "with %d ranks, X is %s and Out is %s", b.ranks, o.X, o.Out)
		}
		return b.rendezvous(n, o.X, collective{kind: reduceScatter, from: b.address(o.X), to: b.address(o.Out), n: o.Out.Elems()}), nil
	case *backend.AllGather:
		if b.ranks > 0 && o.Out.Elems() != o.X.Elems()*b.ranks {
			return nil, unsupported(n, "with %d ranks, X is %s and Out is %s", b.ranks, o.X, o.Out)
		}
		return b.rendezvous(n, o.X, collective{kind: allGather, from: b.address(o.X), to: b.address(o.Out), n: int(o.X.Bytes())}), nil
	case *backend.Send:
		return b.message(n, o.X, collective{kind: send, from: b.address(o.X), peer: o.Peer})
	case *backend.Recv:
		return b.message(n, o.Out, collective{kind: receive, to: b.address(o.Out), peer: o.Peer})
	default:
		return nil, unsupported(n, "%T is not a collective", n.Op)
	}
}

func (b *binder) message(n *backend.Node, t *backend.Tensor, c collective) ([]call, error) {
	if b.ranks > 0 && (c.peer >= b.ranks || c.peer == b.rank) {
		return nil, unsupported(n, "rank %d cannot exchange a message with rank %d, there are %d ranks", b.rank, c.peer, b.ranks)
	}
	c.n = int(t.Bytes())
	return b.rendezvous(n, t, c), nil
}

// rendezvous gives a collective its name and mark.
func (b *binder) rendezvous(n *backend.Node, t *backend.Tensor, c collective) []call {
	c.name = fmt.Sprintf("%s of %s", n.Path(), t)
	b.marks = append(b.marks, c.name)
	c.mark = b.table([]uint64{uint64(len(b.marks))})
	return []call{{collective: &c}}
}
