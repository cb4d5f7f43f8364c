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

// implementCollective adds a collective: every rank contributes the values of in, finish
// stores the result of all ranks' contributions, and check refuses operands that do not fit the number of ranks.
func implementCollective[O backend.Op](in func(O) *backend.Tensor, finish func(b *Backend, o O, parts [][]float64), check func(b *Backend, o O) error) struct{} {
	var op O
	return ops.Add(op, row{
		run: func(ctx context.Context, b *Backend, n *backend.Node) error {
			x := in(n.Op.(O))
			parts, err := b.exchange(ctx, fmt.Sprintf("%T of %d elements", n.Op, x.Elems()), b.stored(x))
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
		b.store(o.Out, reduce(parts, backend.ReduceSum)[b.group.Rank()*n:][:n])
	},
	func(b *Backend, o *backend.ReduceScatter) error { return b.checkShards(o.Out, o.X, o.X, o.Out) },
)

var _ = implementCollective(
	func(o *backend.AllGather) *backend.Tensor { return o.X },
	func(b *Backend, o *backend.AllGather, parts [][]float64) { b.put(o.Out, slices.Concat(parts...)) },
	func(b *Backend, o *backend.AllGather) error { return b.checkShards(o.X, o.Out, o.X, o.Out) },
)

var _ = implementCollective(
	func(o *backend.AllToAll) *backend.Tensor { return o.X },
	func(b *Backend, o *backend.AllToAll, parts [][]float64) {
		var out []float64
		n := o.X.Elems() / b.group.Size()
		for _, x := range parts {
			out = append(out, x[b.group.Rank()*n:][:n]...)
		}
		b.put(o.Out, out)
	},
	func(b *Backend, o *backend.AllToAll) error {
		_, err := o.PartBytes(b.group.Size())
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
func (b *Backend) checkShards(shard, whole, x, out *backend.Tensor) error {
	if whole.Elems() != shard.Elems()*b.group.Size() {
		return fmt.Errorf("there are %d ranks, X is %s and Out is %s", b.group.Size(), x, out)
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
