package gaudi

import (
	"fmt"
	"slices"

	"octet/backend"
	"octet/csrc/libsynapse"
	"octet/fp8"
)

// transferKind is what a transfer does.
type transferKind uint8

const (
	duplicate transferKind = iota // within the device
	allReduce
	reduceScatter
	allGather
	broadcast // from rank 0
	send
	receive
)

// A transfer moves numbers between the ranks, by HCCL, or within a device.
type transfer struct {
	Kind      transferKind
	To, From  libsynapse.Ptr
	Count     int // of what HCCL counts in: see libsynapse.Comm
	Type      libsynapse.DataType
	Reduction libsynapse.Reduction
	Peer      int
	Name      string // of what it is for, where ranks meet
}

// A span is where a contiguous operand of a collective lies on the device,
// padding between its runs included.
type span struct {
	at    libsynapse.Ptr
	bytes int64
	runs  int
}

// transferOf is the transfer of a collective, nil if there is nothing to do. One
// rank is alone with itself and needs no HCCL.
func transferOf(op backend.Op, ranks int, of func(*backend.Tensor) (span, error)) (*transfer, error) {
	switch o := op.(type) {
	case *backend.AllReduce:
		x, err := of(o.X)
		if err != nil || ranks == 1 {
			return nil, err
		}
		// Padding is added up with the rest; nobody reads it.
		t := &transfer{Kind: allReduce, To: x.at, Count: int(x.bytes / 4), Type: libsynapse.F32}
		if o.Reduce == backend.ReduceMax {
			// Magnitudes, see magnitudes: as unsigned numbers their bits are in
			// the order of their values, NaN above infinity. What HCCL's maximum
			// of floats makes of NaN nobody says.
			t.Type, t.Reduction = libsynapse.U32, libsynapse.Max
		}
		return t, nil
	case *backend.ReduceScatter:
		t, err := between(reduceScatter, o.X, o.Out, ranks, of)
		if err != nil {
			return nil, err
		}
		if t.Kind == reduceScatter {
			t.Type, t.Count = libsynapse.F32, o.Out.Elems()
		}
		return t, nil
	case *backend.AllGather:
		t, err := between(allGather, o.X, o.Out, ranks, of)
		if err != nil || t.Kind == duplicate {
			return t, err
		}
		return t, t.carry(o.X)
	case *backend.Send:
		return message(send, o.X, o.Peer, ranks, of)
	case *backend.Recv:
		return message(receive, o.Out, o.Peer, ranks, of)
	default:
		return nil, fmt.Errorf("%T is no collective", op)
	}
}

// between is a transfer from x to out, of which one has a part for every rank.
func between(kind transferKind, x, out *backend.Tensor, ranks int, of func(*backend.Tensor) (span, error)) (*transfer, error) {
	from, err := of(x)
	if err != nil {
		return nil, err
	}
	to, err := of(out)
	if err != nil {
		return nil, err
	}
	if from.runs > 1 || to.runs > 1 {
		return nil, fmt.Errorf("%w by backend gaudi: %s or %s is packed, and its elements do not lie side by side on the device", backend.ErrUnsupported, x, out)
	}
	if small, large := min(from.bytes, to.bytes), max(from.bytes, to.bytes); large != small*int64(ranks) {
		return nil, fmt.Errorf("expected a part for each of %d ranks: X is %s, Out is %s", ranks, x, out)
	}
	if ranks == 1 {
		return &transfer{Kind: duplicate, To: to.at, From: from.at, Count: int(from.bytes)}, nil
	}
	return &transfer{Kind: kind, To: to.at, From: from.at}, nil
}

// message is a transfer of t to or from another rank.
func message(kind transferKind, t *backend.Tensor, peer, ranks int, of func(*backend.Tensor) (span, error)) (*transfer, error) {
	s, err := of(t)
	if err != nil {
		return nil, err
	}
	if s.runs > 1 {
		return nil, fmt.Errorf("%w by backend gaudi: %s is packed, and its elements do not lie side by side on the device", backend.ErrUnsupported, t)
	}
	if peer >= ranks {
		return nil, fmt.Errorf("a message to or from rank %d, and there are %d ranks", peer, ranks)
	}
	m := &transfer{Kind: kind, To: s.at, From: s.at, Peer: peer}
	return m, m.carry(t)
}

// carry moves the bytes of t as numbers of a type that HCCL knows: they are not
// computed with.
func (m *transfer) carry(t *backend.Tensor) error {
	switch n := t.Bytes(); {
	case n%4 == 0:
		m.Type, m.Count = libsynapse.I32, int(n/4)
	case n%2 == 0:
		m.Type, m.Count = libsynapse.BF16, int(n/2)
	default:
		return fmt.Errorf("%w by backend gaudi: %s has an odd number of bytes, and HCCL moves two or four at a time", backend.ErrUnsupported, t)
	}
	return nil
}

// magnitudes makes the operand of a maximum over ranks ready for transferOf.
func (b *builder) magnitudes(o *backend.AllReduce) error {
	b.out(o.X, b.abs(b.in(o.X)))
	return nil
}

// needsMagnitudes reports whether a collective has a unit that runs before it.
func needsMagnitudes(op backend.Op) bool {
	o, ok := op.(*backend.AllReduce)
	return ok && o.Reduce == backend.ReduceMax
}

// agreement gives all ranks what rank 0 has made of an optimizer's tensors, where it
// rounds at random: each device does so with bits of its own, and the copies of the
// weights would drift apart. Of what ranks have in parts there are no copies.
func agreement(o *backend.AdamW, ranks int, of func(*backend.Tensor) (span, error)) ([]transfer, error) {
	if ranks == 1 || o.Rounding != fp8.Stochastic || o.AmaxOnly || o.Shard {
		return nil, nil
	}
	var list []transfer
	for _, t := range slices.Concat(o.Master, o.M1, o.M2) {
		if t.DType == fp8.F32 {
			continue // which nothing is rounded to
		}
		s, err := of(t)
		if err != nil {
			return nil, err
		}
		if s.bytes%4 != 0 && t.Base != nil {
			return nil, fmt.Errorf("%w by backend gaudi: ranks cannot agree about the view %s, whose bytes HCCL cannot move by four", backend.ErrUnsupported, t)
		}
		words := int(s.bytes+3) / 4 // what follows is the tensor's own padding
		list = append(list, transfer{Kind: broadcast, To: s.at, Count: words, Type: libsynapse.U32})
	}
	return list, nil
}
