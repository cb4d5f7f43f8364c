package ref

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"octet/backend"
	"octet/fp8"
)

// exchange contributes part and returns the parts of all ranks. what describes the collective;
// exchange fails if it differs between ranks.
func (b *Backend) exchange(ctx context.Context, what string, part []float64) ([][]float64, error) {
	var raw []byte
	for _, x := range part {
		raw = binary.LittleEndian.AppendUint64(raw, math.Float64bits(x))
	}
	parts, err := b.group.Exchange(ctx, what, raw)
	all := make([][]float64, len(parts))
	for rank, raw := range parts {
		for word := range slices.Chunk(raw, 8) {
			all[rank] = append(all[rank], math.Float64frombits(binary.LittleEndian.Uint64(word)))
		}
	}
	return all, err
}

// members is what a collective knows of the ranks that it joins: their contributions in order, and the
// place of this rank.
type members struct {
	parts [][]float64
	index int
}

// implementCollective adds a collective: every rank contributes the values of in, finish
// stores the result of the contributions of the group's ranks, and check refuses operands that do not
// fit their number.
func implementCollective[O backend.Op](in func(O) *backend.Tensor, finish func(b *Backend, o O, m members), check func(o O, ranks int) error) struct{} {
	var op O
	return ops.Add(op, row{
		run: func(ctx context.Context, b *Backend, n *backend.Node) error {
			x := in(n.Op.(O))
			_, _, g := backend.Exchanged(n.Op)
			all, err := b.exchange(ctx, fmt.Sprintf("%T of %d elements", n.Op, x.Elems()), b.stored(x))
			if err != nil {
				return err
			}
			ranks, err := g.Ranks(len(all))
			if err != nil {
				return err
			}
			m := members{index: g.Index(b.group.Rank())}
			for i := range ranks {
				m.parts = append(m.parts, all[g.Member(b.group.Rank(), i)])
			}
			finish(b, n.Op.(O), m)
			return nil
		},
		check: func(b *Backend, op backend.Op) error {
			_, _, g := backend.Exchanged(op)
			ranks, err := g.Ranks(b.group.Size())
			if err != nil {
				return err
			}
			return check(op.(O), ranks)
		},
	})
}

var _ = implementCollective(
	func(o *backend.AllReduce) *backend.Tensor { return o.X },
	func(b *Backend, o *backend.AllReduce, m members) { b.store(o.X, reduce(m.parts, o.Reduce)) },
	func(*backend.AllReduce, int) error { return nil },
)

var _ = implementCollective(
	func(o *backend.ReduceScatter) *backend.Tensor { return o.X },
	func(b *Backend, o *backend.ReduceScatter, m members) {
		n := o.Out.Elems()
		b.store(o.Out, reduce(m.parts, backend.ReduceSum)[m.index*n:][:n])
	},
	func(o *backend.ReduceScatter, ranks int) error { return checkShards(ranks, o.Out, o.X, o.X, o.Out) },
)

var _ = implementCollective(
	func(o *backend.AllGather) *backend.Tensor { return o.X },
	func(b *Backend, o *backend.AllGather, m members) { b.put(o.Out, slices.Concat(m.parts...)) },
	func(o *backend.AllGather, ranks int) error { return checkShards(ranks, o.X, o.Out, o.X, o.Out) },
)

var _ = implementCollective(
	func(o *backend.AllToAll) *backend.Tensor { return o.X },
	func(b *Backend, o *backend.AllToAll, m members) {
		var out []float64
		n := o.X.Elems() / len(m.parts)
		for _, x := range m.parts {
			out = append(out, x[m.index*n:][:n]...)
		}
		b.put(o.Out, out)
	},
	func(o *backend.AllToAll, ranks int) error {
		_, err := o.PartBytes(ranks)
		return err
	},
)

var _ = implement((*Backend).sumParts)

func (b *Backend) sumParts(o *backend.SumParts) {
	n := o.Out.Elems()
	if o.Rounded {
		b.sumRounded(o)
		return
	}
	var sum []float64
	for part := range slices.Chunk(b.read(o.X), n) {
		if sum == nil {
			sum = make([]float64, n)
			copy(sum, part)
			continue
		}
		for i, x := range part {
			sum[i] = b.fp32(b.fp32(sum[i]) + b.fp32(x))
		}
	}
	b.storeSum(o, sum)
}

// storeSum stores the result of SumParts.
func (b *Backend) storeSum(o *backend.SumParts, sum []float64) {
	if o.Accumulate {
		for i, x := range b.read(o.Out) {
			sum[i] = x + b.fp32(sum[i])
		}
	}
	b.store(o.Out, sum)
}

// sumRounded adds codes, whose sums have X's format.
func (b *Backend) sumRounded(o *backend.SumParts) {
	d, n := o.X.DType, o.Out.Elems()
	codes := b.stored(o.X)
	sum, atMax := codes[:n:n], 0.0
	for at := n; at <= len(codes); at += n {
		last := at == len(codes)
		for i, x := range sum {
			if !last {
				x = b.fp32(x + codes[at+i])
			}
			if o.Each || last {
				x = b.round(d, x, fp8.Saturate, fp8.Nearest, 0)
			}
			if sum[i] = x; last && math.Abs(x) == float64(d.Max()) {
				atMax++
			}
		}
	}
	for i := range sum {
		sum[i] *= b.read(o.X.Scale)[0]
	}
	b.storeSum(o, sum)
	if o.AtMax != nil {
		b.store(o.AtMax, []float64{b.read(o.AtMax)[0] + atMax})
	}
}

var _ = implement((*Backend).stepMu)

func (b *Backend) stepMu(o *backend.StepMu) {
	if b.set(o.Skip) {
		return
	}
	mu, atMax := b.read(o.Mu), b.read(o.AtMax)
	for i := range mu {
		mu[i] = float64(o.Next(float32(mu[i]), float32(atMax[i])))
	}
	b.store(o.Mu, mu)
}

// checkShards refuses a whole that is not one shard for each rank.
func checkShards(ranks int, shard, whole, x, out *backend.Tensor) error {
	if whole.Elems() != shard.Elems()*ranks {
		return fmt.Errorf("there are %d ranks, X is %s and Out is %s", ranks, x, out)
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
