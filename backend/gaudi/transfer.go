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
	broadcast // from the first rank
)

// A transfer moves data between the ranks, by HCCL, or within a device.
type transfer struct {
	Kind      transferKind
	To, From  libsynapse.Ptr
	Count     int // elements as in libsynapse.Comm; bytes for localCopy
	Type      libsynapse.DataType
	Reduction libsynapse.Reduction
	Group     backend.Group // ranks of a collective, as ranksOf returns them
	Name      string        // path of a collective's node
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

// ranksOf returns the ranks of a group and their number. A group of all ranks is the zero value.
func (m memory) ranksOf(g backend.Group) (backend.Group, int, error) {
	n, err := g.Ranks(m.group.Size())
	if err != nil {
		return g, 0, fmt.Errorf("%w by backend gaudi: %w", backend.ErrUnsupported, err)
	}
	if n == m.group.Size() {
		g = backend.Group{}
	}
	return g, n, nil
}

// allReduce returns no transfer for a single rank, which needs no HCCL.
func (m memory) allReduce(o *backend.AllReduce) ([]transfer, error) {
	g, ranks, err := m.ranksOf(o.Group)
	if err != nil {
		return nil, err
	}
	x, err := m.spanOf(o.X)
	if err != nil || ranks == 1 {
		return nil, err
	}
	// The reduction covers the padding, which is never read.
	t := transfer{Kind: allReduce, To: x.at, Count: int(x.bytes / 4), Type: libsynapse.F32, Group: g}
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
	t, err := m.scatterOrGather(reduceScatter, o.Group, o.X, o.Out)
	if err == nil && t.Kind == reduceScatter {
		t.Type, t.Count = libsynapse.F32, o.Out.Elems()
	}
	return []transfer{t}, err
}

var _ = implementOp(row[*backend.AllGather]{transfers: memory.allGather, collective: true})

func (m memory) allGather(o *backend.AllGather) ([]transfer, error) {
	t, err := m.scatterOrGather(allGather, o.Group, o.X, o.Out)
	if err == nil && t.Kind == allGather {
		err = t.carry(o.X, o.X.Bytes())
	}
	return []transfer{t}, err
}

var _ = implementOp(row[*backend.AllToAll]{transfers: memory.allToAll, collective: true})

// allToAll returns a transfer, for a single rank a copy.
func (m memory) allToAll(o *backend.AllToAll) ([]transfer, error) {
	_, ranks, err := m.ranksOf(o.Group)
	if err != nil {
		return nil, err
	}
	part, err := o.PartBytes(ranks)
	if err != nil {
		return nil, err
	}
	t, err := m.between(allToAll, o.Group, o.X, o.Out)
	if err == nil && t.Kind == allToAll {
		err = t.carry(o.X, part)
	}
	return []transfer{t}, err
}

// scatterOrGather returns a transfer from x to out, one of which has a shard for every
// rank. For a single rank it is a copy.
func (m memory) scatterOrGather(kind transferKind, g backend.Group, x, out *backend.Tensor) (t transfer, err error) {
	_, ranks, err := m.ranksOf(g)
	if err != nil {
		return t, err
	}
	if small, large := min(x.Bytes(), out.Bytes()), max(x.Bytes(), out.Bytes()); large != small*int64(ranks) {
		return t, fmt.Errorf("want one shard for each of %d ranks: X is %s, Out is %s", ranks, x, out)
	}
	return m.between(kind, g, x, out)
}

// between returns a transfer from x to out without its count. For a single rank it is a copy.
func (m memory) between(kind transferKind, g backend.Group, x, out *backend.Tensor) (t transfer, err error) {
	g, ranks, err := m.ranksOf(g)
	if err != nil {
		return t, err
	}
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
	if ranks == 1 {
		return transfer{Kind: localCopy, To: to.at, From: from.at, Count: int(from.bytes)}, nil
	}
	return transfer{Kind: kind, To: to.at, From: from.at, Group: g}, nil
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

// broadcastCopies returns broadcasts of the tensors that an optimizer rounds stochastically, from
// the first of the ranks that have copies of them: each device draws its own random bits, and the
// copies would drift apart.
func (m memory) broadcastCopies(o *backend.AdamW) ([]transfer, error) {
	if o.Rounding != fp8.Stochastic || o.AmaxOnly {
		return nil, nil
	}
	groups, err := m.copyGroups(o)
	if err != nil || groups == nil {
		return nil, err
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
		for _, g := range groups {
			list = append(list, transfer{Kind: broadcast, To: s.at, Count: words, Type: libsynapse.U32, Group: g})
		}
	}
	return list, nil
}

// copyGroups returns the groups whose broadcasts, one after the other, reach all copies of an
// optimizer's tensors; nil without copies. Whole tensors have copies on all ranks, shards of all
// ranks none. With Split the ranks of equal index have copies: Stride consecutive ranks, and those
// of the other groups, Size·Stride apart.
func (m memory) copyGroups(o *backend.AdamW) (list []backend.Group, err error) {
	groups := []backend.Group{{}}
	if o.Shard {
		split, ranks, err := m.ranksOf(o.Split)
		if err != nil || split.All() {
			return nil, err
		}
		period := ranks * split.Stride
		groups = []backend.Group{{Size: split.Stride, Stride: 1}, {Size: m.group.Size() / period, Stride: period}}
	}
	for _, g := range groups {
		g, ranks, err := m.ranksOf(g)
		if err != nil {
			return nil, err
		}
		if ranks > 1 {
			list = append(list, g)
		}
	}
	return list, nil
}
