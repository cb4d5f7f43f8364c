package gaudi

import (
	"fmt"
	"slices"

	"octet/backend"
	"octet/csrc/libsynapse"
	"octet/fp8"
)

// transferKind is the kind of a transfer.
type transferKind uint8

const (
	localCopy transferKind = iota // within the device
	allReduce
	reduceScatter
	allGather
	allToAll
	broadcast // from rank 0
)

// A transfer moves data between the ranks, by HCCL, or within a device.
type transfer struct {
	Kind      transferKind
	To, From  libsynapse.Ptr
	Count     int // elements as in libsynapse.Comm; bytes for localCopy
	Type      libsynapse.DataType
	Reduction libsynapse.Reduction
	Name      string // path of a collective's node
}

// A span is the byte range of a collective's contiguous operand on the device, with the
// padding between its runs.
type span struct {
	at    libsynapse.Ptr
	bytes int64
	runs  int
}

var _ = implementOp(row[*backend.AllReduce]{build: (*builder).magnitudes, transfers: memory.allReduce, collective: true})

// magnitudes replaces the operand of a maximum over ranks by its absolute values, as
// allReduce requires.
func (b *builder) magnitudes(o *backend.AllReduce) error {
	if o.Reduce == backend.ReduceMax {
		b.out(o.X, b.abs(b.in(o.X)))
	}
	return nil
}

// allReduce returns no transfer for a single rank, which needs no HCCL.
func (m memory) allReduce(o *backend.AllReduce) ([]transfer, error) {
	x, err := m.spanOf(o.X)
	if err != nil || m.group.Size() == 1 {
		return nil, err
	}
	// The reduction covers the padding, which is never read.
	t := transfer{Kind: allReduce, To: x.at, Count: int(x.bytes / 4), Type: libsynapse.F32}
	if o.Reduce == backend.ReduceMax {
		// The operand holds magnitudes (see magnitudes). Read as unsigned integers, their
		// bits have the order of their values, NaN above infinity. HCCL does not document
		// how its maximum of floats treats NaN.
		t.Type, t.Reduction = libsynapse.U32, libsynapse.Max
	}
	return []transfer{t}, nil
}

var _ = implementOp(row[*backend.ReduceScatter]{transfers: memory.reduceScatter, collective: true})

func (m memory) reduceScatter(o *backend.ReduceScatter) ([]transfer, error) {
	t, err := m.scatterOrGather(reduceScatter, o.X, o.Out)
	if err == nil && t.Kind == reduceScatter {
		t.Type, t.Count = libsynapse.F32, o.Out.Elems()
	}
	return []transfer{t}, err
}

var _ = implementOp(row[*backend.AllGather]{transfers: memory.allGather, collective: true})

func (m memory) allGather(o *backend.AllGather) ([]transfer, error) {
	t, err := m.scatterOrGather(allGather, o.X, o.Out)
	if err == nil && t.Kind == allGather {
		err = t.carry(o.X, o.X.Bytes())
	}
	return []transfer{t}, err
}

var _ = implementOp(row[*backend.AllToAll]{transfers: memory.allToAll, collective: true})

// allToAll returns a transfer, for a single rank a copy.
func (m memory) allToAll(o *backend.AllToAll) ([]transfer, error) {
	part, err := o.PartBytes(m.group.Size())
	if err != nil {
		return nil, err
	}
	t, err := m.between(allToAll, o.X, o.Out)
	if err == nil && t.Kind == allToAll {
		err = t.carry(o.X, part)
	}
	return []transfer{t}, err
}

// scatterOrGather returns a transfer from x to out, one of which has a shard for every
// rank. For a single rank it is a copy.
func (m memory) scatterOrGather(kind transferKind, x, out *backend.Tensor) (t transfer, err error) {
	if small, large := min(x.Bytes(), out.Bytes()), max(x.Bytes(), out.Bytes()); large != small*int64(m.group.Size()) {
		return t, fmt.Errorf("want one shard for each of %d ranks: X is %s, Out is %s", m.group.Size(), x, out)
	}
	return m.between(kind, x, out)
}

// between returns a transfer from x to out without its count. For a single rank it is a copy.
func (m memory) between(kind transferKind, x, out *backend.Tensor) (t transfer, err error) {
	from, err := m.spanOf(x)
	if err != nil {
		return t, err
	}
	to, err := m.spanOf(out)
	if err != nil {
		return t, err
	}
	if from.runs > 1 || to.runs > 1 {
		return t, fmt.Errorf("%w by backend gaudi: %s or %s is packed, and padded on the device", backend.ErrUnsupported, x, out)
	}
	if m.group.Size() == 1 {
		return transfer{Kind: localCopy, To: to.at, From: from.at, Count: int(from.bytes)}, nil
	}
	return transfer{Kind: kind, To: to.at, From: from.at}, nil
}

// carry sets Type and Count such that HCCL moves n bytes of t for each rank unchanged, as a
// type that it supports.
func (m *transfer) carry(t *backend.Tensor, n int64) error {
	switch {
	case n%4 == 0:
		m.Type, m.Count = libsynapse.I32, int(n/4)
	case n%2 == 0:
		m.Type, m.Count = libsynapse.BF16, int(n/2)
	default:
		return fmt.Errorf("%w by backend gaudi: a rank's part of %s has an odd number of bytes, and HCCL moves two or four at a time", backend.ErrUnsupported, t)
	}
	return nil
}

// broadcastFromRank0 returns broadcasts of the tensors that an optimizer rounds
// stochastically, from rank 0: each device draws its own random bits, and the ranks'
// weights would drift apart. Sharded tensors have no copies on other ranks.
func (m memory) broadcastFromRank0(o *backend.AdamW) ([]transfer, error) {
	if m.group.Size() == 1 || o.Rounding != fp8.Stochastic || o.AmaxOnly || o.Shard {
		return nil, nil
	}
	var list []transfer
	for _, t := range slices.Concat(o.Master, o.M1, o.M2) {
		if t.DType == fp8.F32 {
			continue // F32 is not rounded
		}
		s, err := m.spanOf(t)
		if err != nil {
			return nil, err
		}
		if s.bytes%4 != 0 && t.Base != nil {
			return nil, fmt.Errorf("%w by backend gaudi: the view %s cannot be broadcast, because HCCL moves four bytes at a time", backend.ErrUnsupported, t)
		}
		words := int(s.bytes+3) / 4 // rounded up into the tensor's padding
		list = append(list, transfer{Kind: broadcast, To: s.at, Count: words, Type: libsynapse.U32})
	}
	return list, nil
}
