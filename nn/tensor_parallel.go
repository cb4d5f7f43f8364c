package nn

import (
	"fmt"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// This file divides each layer among the ranks of a tensor group, which read the same batch: tensor
// parallelism (Shoeybi et al., arXiv 1909.08053) with sequence parallelism (Korthikanti et al., arXiv
// 2205.05198).
//
//	residual stream, norms   rows: each rank has some tokens
//	  | gather the tokens    in the casts that the GEMMs read
//	q, k, v, up, gate        W split by rows: y has the columns of some heads or channels
//	attention, activation
//	o, down                  W split by columns: y is a partial sum for all tokens
//	  | scatter the tokens   in the compute format, added in FP32 in order of rank
//	residual stream
//
// In the backward a gather takes the place of a scatter and the reverse. The embedding and the head hold
// some rows of the vocabulary each: an embedding's result is a partial sum, too, and the softmax takes its
// maximum and its sum from all ranks (backend.SoftmaxStats).
//
// Which ranks a maximum is taken over follows from where the parts of a tensor are:
//
//   - a tensor that the group divides, by tokens or by columns, has one current scale: from the maximum
//     of the group's amaxes, before the cast. Amaxes for later scales, and those of weights, are maxima
//     over all ranks;
//   - a channel of Smooth-SwiGLU is whole on one rank, with all tokens of the batch. Its maxima of
//     earlier steps are those of the ranks with the same channels and other batches. Only the amax of the
//     smoothed activation, and that of W3′, which have all channels, are maxima over the group.
//
// Scales of rows or of blocks belong to one rank's part. They are finer than those of one rank where a part
// ends within a row or a block.
//
// These collectives are part of the forward or the backward, which wait for them: recomputation repeats
// those of a forward.
//
// Gradients: what the group divides is summed over ranks with other batches. The gain of a norm has the
// tokens, or the heads, of one rank, so that its gradient is summed over all ranks.

// Split says how the ranks of a tensor group divide a parameter.
type Split uint8

const (
	NotSplit     Split = iota // every rank has all of it
	SplitRows                 // equal blocks of rows
	SplitColumns              // equal blocks of columns
)

// part returns the shape of a rank's part.
func (s Split) part(shape []int, ranks int) []int {
	part := append([]int{}, shape...)
	switch s {
	case SplitRows:
		part[0] /= ranks
	case SplitColumns:
		part[1] /= ranks
	}
	return part
}

// tensor returns the number of ranks that share each layer.
func (b *Base) tensor() int { return max(1, b.Tensor) }

// padded rounds a number of rows up to a multiple of 16, which FP8 GEMMs require, on every rank.
func (b *Base) padded(rows int) int {
	unit := 16 * b.tensor()
	return (rows + unit - 1) / unit * unit
}

// shardGroup returns the ranks that share the optimizer state of a parameter, or of a part of it.
func (b *Base) shardGroup() backend.Group { return dataGroup(b.Shards, b.Tensor) }

// dataGroup returns the ranks that have the same parts of parameters as this one, and other batches.
func (p *Pass) dataGroup() backend.Group { return dataGroup(p.Ranks, p.tensor) }

func dataGroup(ranks, tensor int) backend.Group {
	if tensor < 2 {
		return backend.Group{}
	}
	return backend.Group{Size: ranks, Stride: tensor}
}

// tensorGroup returns the ranks that share layers with this one.
func (p *Pass) tensorGroup() backend.Group { return backend.Group{Size: p.tensor, Stride: 1} }

// split returns tensorGroup for ops that have a part of the vocabulary; none if this rank has all of it.
func (p *Pass) split() backend.Group {
	if p.tensor < 2 {
		return backend.Group{}
	}
	return p.tensorGroup()
}

// ownTokens returns the number of rows of the residual stream.
func (p *Pass) ownTokens() int { return p.Tokens() / p.tensor }

// checkTensor reports a recipe that the ranks of a tensor group cannot follow.
func (b *Base) checkTensor() error {
	if b.tensor() == 1 {
		return nil
	}
	for _, l := range b.linears {
		if l.l1 != 0 {
			return fmt.Errorf("%s: l1_bits needs whole rows of weights on every rank; use train.tensor_parallel = 1", l.Scope)
		}
		for _, c := range l.Grads() {
			if c.Scaling == recipe.Direction {
				return fmt.Errorf("%s: scaling direction needs whole gradients on every rank; use train.tensor_parallel = 1", l.Scope)
			}
		}
	}
	return nil
}

// CheckTokens reports a number of tokens in a micro-batch that the ranks of a tensor group cannot divide.
func (b *Base) CheckTokens(n int) error {
	if n%b.tensor() != 0 {
		return fmt.Errorf("a micro-batch has %d tokens, which the %[2]d ranks of a group cannot divide into equal parts; use a train.micro_batch or data.seq with a multiple of train.tensor_parallel = %[2]d tokens", n, b.tensor())
	}
	return nil
}

// maxOverParts replaces x by its maximum over the tensor group.
func (p *Pass) maxOverParts(x *backend.Tensor) {
	if p.tensor > 1 {
		p.Add(&backend.AllReduce{X: x, Reduce: backend.ReduceMax, Group: p.tensorGroup()})
	}
}

// gatherTokens appends the gather of all tokens of x, of which each rank has some rows, with its block
// scales.
func (p *Pass) gatherTokens(x *backend.Tensor) *backend.Tensor {
	all := func(x *backend.Tensor) *backend.Tensor {
		return p.root.Temp(x.Name+".tokens", x.DType, append([]int{x.Shape[0] * p.tensor}, x.Shape[1:]...)...)
	}
	t := all(x)
	t.Scale, t.Block, t.Outer = x.Scale, x.Block, x.Outer
	if x.Block != backend.PerTensor {
		t.Scale = all(x.Scale)
		gather(p.Program, x.Scale, t.Scale, p.tensorGroup())
	}
	gather(p.Program, x, t, p.tensorGroup())
	return t
}

// gathersCast reports whether the rows of a copy of all tokens are those that ranks cast from their own
// tokens. Otherwise each rank casts all tokens, which it gathers in the compute format.
func (p *Pass) gathersCast(c Copy) bool {
	switch {
	case c.Hadamard.On():
		return false // it rotates along the tokens
	case c.stored().Size() == 0:
		return false // backend cuda does not transpose two codes in a byte
	case !c.blockScaled():
		return true
	}
	return c.Block.Rows > 0 && p.ownTokens()%c.Block.Rows == 0 && !c.Scale.Outer
}

// scatterTokens appends the sum of partial [tokens, cols] over the tensor group, and returns the rows of
// this rank's tokens, F32; without a group partial itself. The partial sums travel in the compute format.
func (p *Pass) scatterTokens(partial *backend.Tensor) *backend.Tensor {
	if p.tensor < 2 {
		return partial
	}
	name, cols := partial.Name, partial.Cols()
	if partial.DType != p.compute {
		cast := p.root.Temp(name+"."+p.compute.String(), p.compute, partial.Rows(), cols)
		p.Add(&backend.Quantize{X: partial, Out: []backend.Cast{{Out: cast}}})
		partial = cast
	}
	parts := p.root.Temp(name+".parts", p.compute, partial.Rows(), cols)
	sum := p.root.Temp(name+".sum", fp8.F32, p.ownTokens(), cols)
	p.Add(&backend.AllToAll{X: partial, Out: parts, Group: p.tensorGroup()})
	p.Add(&backend.SumParts{X: parts, Out: sum})
	return sum
}

// reduceTokens is scatterTokens plus residual, unless that is nil, in the compute format.
func (p *Pass) reduceTokens(partial, residual *backend.Tensor) *backend.Tensor {
	sum := p.scatterTokens(partial)
	y := p.root.Temp(partial.Name+".reduced", p.compute, sum.Rows(), sum.Cols())
	out := []backend.Cast{{Out: y}}
	if residual == nil {
		p.Add(&backend.Quantize{X: sum, Out: out})
	} else {
		p.Add(&backend.Add{A: sum, B: residual, Out: out})
	}
	return y
}

// tokenSlot declares the slot of a tensor of which each rank has some tokens: GEMMs read the copies whole
// of all tokens, and other ops the copies own.
func (b *Base) tokenSlot(name string, whole []Copy, own ...Copy) *Slot {
	s := b.Slot(name, append(append([]Copy{}, whole...), own...)...)
	if b.tensor() > 1 {
		s.whole = whole
	}
	return s
}
