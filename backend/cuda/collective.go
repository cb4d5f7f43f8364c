package cuda

import (
	"fmt"

	"octet/backend"
)

// collective is what a node asks of the ranks together. They may all be this one.
type collective struct {
	kind     meeting
	from, to uint64
	n        int // of reductions FP32 numbers, otherwise bytes: each rank's share
	peer     int // of messages

	// name is what the ranks are said to meet for, and mark the address of its
	// number, from 1 on, which the device shows when it gets there.
	name string
	mark uint64
}

// meeting is a kind of collective.
type meeting uint8

const (
	sumAll     meeting = iota
	maxAll             // of the bits of magnitudes
	sumScatter         // everybody gets a part of the sum
	gather
	send
	receive
)

// collective binds an op that meets other ranks. It stays on the stream of
// everything else, whatever the queue of its node.
func (b *binder) collective(n *backend.Node) ([]call, error) {
	switch o := n.Op.(type) {
	case *backend.AllReduce:
		c := collective{kind: sumAll, from: b.address(o.X), to: b.address(o.X), n: o.X.Elems()}
		if o.Reduce == backend.ReduceSum {
			return b.meeting(n, o.X, c), nil
		}
		// NCCL's maximum of floats drops NaN. The bits of magnitudes are ordered
		// like the magnitudes, NaN above infinity, also as signed integers.
		calls, err := b.plain("magnitudes", o, o.X)
		c.kind = maxAll
		return append(calls, b.meeting(n, o.X, c)...), err
	case *backend.ReduceScatter:
		if b.ranks > 0 && o.X.Elems() != o.Out.Elems()*b.ranks {
			return nil, unsupported(n, "there are %d ranks, X is %s and Out is %s", b.ranks, o.X, o.Out)
		}
		return b.meeting(n, o.X, collective{kind: sumScatter, from: b.address(o.X), to: b.address(o.Out), n: o.Out.Elems()}), nil
	case *backend.AllGather:
		if b.ranks > 0 && o.Out.Elems() != o.X.Elems()*b.ranks {
			return nil, unsupported(n, "there are %d ranks, X is %s and Out is %s", b.ranks, o.X, o.Out)
		}
		return b.meeting(n, o.X, collective{kind: gather, from: b.address(o.X), to: b.address(o.Out), n: int(o.X.Bytes())}), nil
	case *backend.Send:
		return b.message(n, o.X, collective{kind: send, from: b.address(o.X), peer: o.Peer})
	case *backend.Recv:
		return b.message(n, o.Out, collective{kind: receive, to: b.address(o.Out), peer: o.Peer})
	default:
		return nil, unsupported(n, "%T is no collective", n.Op)
	}
}

func (b *binder) message(n *backend.Node, t *backend.Tensor, c collective) ([]call, error) {
	if b.ranks > 0 && (c.peer >= b.ranks || c.peer == b.rank) {
		return nil, unsupported(n, "rank %d cannot exchange a message with rank %d, there are %d ranks", b.rank, c.peer, b.ranks)
	}
	c.n = int(t.Bytes())
	return b.meeting(n, t, c), nil
}

// meeting gives a collective its number.
func (b *binder) meeting(n *backend.Node, t *backend.Tensor, c collective) []call {
	c.name = fmt.Sprintf("%s of %s", n.Path(), t)
	b.meetings = append(b.meetings, c.name)
	c.mark = b.table([]uint64{uint64(len(b.meetings))})
	return []call{{collective: &c}}
}
