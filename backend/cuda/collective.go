package cuda

import "octet/backend"

// collective is what a node asks of the ranks together. They may all be this one.
type collective struct {
	kind     meeting
	from, to uint64
	n        int // of reductions FP32 numbers, otherwise bytes: each rank's share
	peer     int // of messages
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

// bytes is how many of them a rank alone has to move.
func (c *collective) bytes() int {
	if c.kind == sumScatter {
		return 4 * c.n
	}
	return c.n
}

// collective binds an op that meets other ranks. It stays on the stream of
// everything else, whatever the queue of its node.
func (b *binder) collective(n *backend.Node) ([]call, error) {
	switch o := n.Op.(type) {
	case *backend.AllReduce:
		c := &collective{kind: sumAll, from: b.address(o.X), to: b.address(o.X), n: o.X.Elems()}
		if o.Reduce == backend.ReduceSum {
			return []call{{collective: c}}, nil
		}
		// NCCL's maximum of floats drops NaN. The bits of magnitudes are ordered
		// like the magnitudes, NaN above infinity, also as signed integers.
		calls, err := b.plain("magnitudes", o, o.X)
		c.kind = maxAll
		return append(calls, call{collective: c}), err
	case *backend.ReduceScatter:
		if b.ranks > 0 && o.X.Elems() != o.Out.Elems()*b.ranks {
			return nil, unsupported(n, "there are %d ranks, X is %s and Out is %s", b.ranks, o.X, o.Out)
		}
		return []call{{collective: &collective{kind: sumScatter, from: b.address(o.X), to: b.address(o.Out), n: o.Out.Elems()}}}, nil
	case *backend.AllGather:
		if b.ranks > 0 && o.Out.Elems() != o.X.Elems()*b.ranks {
			return nil, unsupported(n, "there are %d ranks, X is %s and Out is %s", b.ranks, o.X, o.Out)
		}
		return []call{{collective: &collective{kind: gather, from: b.address(o.X), to: b.address(o.Out), n: int(o.X.Bytes())}}}, nil
	case *backend.Send:
		return b.message(n, collective{kind: send, from: b.address(o.X), n: int(o.X.Bytes()), peer: o.Peer})
	case *backend.Recv:
		return b.message(n, collective{kind: receive, to: b.address(o.Out), n: int(o.Out.Bytes()), peer: o.Peer})
	}
	return nil, unsupported(n, "%T is no collective", n.Op)
}

func (b *binder) message(n *backend.Node, c collective) ([]call, error) {
	if b.ranks > 0 && (c.peer >= b.ranks || c.peer == b.rank) {
		return nil, unsupported(n, "rank %d cannot exchange a message with rank %d, there are %d ranks", b.rank, c.peer, b.ranks)
	}
	return []call{{collective: &c}}, nil
}
