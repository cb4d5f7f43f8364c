package nn

import (
	"slices"

	"octet/backend"
	"octet/fp8"
)

// This file casts weights whose masters the ranks share ([Param.Sharded]). GEMMs read all rows.
// Each rank casts its own rows, and an all-gather moves the codes: a byte per element in FP8,
// where a master in FP16 has two. The codes are those of a cast of the whole master, because
// all ranks cast with the same scales.

// gather returns all rows of a weight: the persistent copy if there is one, else a
// temp of this name, filled by an all-gather over the ranks.
func (p *Pass) gather(w *Param, name string) *backend.Tensor {
	if w.whole != nil {
		return w.whole
	}
	t := p.Temp(name, w.Master.DType, w.paddedShape(p.Ranks)...)
	t.Scale = w.Master.Scale
	p.gatherRows(w.Master, t)
	return w.withoutPadding(t)
}

// gatherRows appends the collective that joins the rows x of all ranks in out.
func (p *Pass) gatherRows(x, out *backend.Tensor) { gather(p.comm(), x, out, p.dataGroup()) }

func gather(q *backend.Program, x, out *backend.Tensor, g backend.Group) {
	q.Add(&backend.AllGather{X: x, Out: out, Group: g})
}

// castRows appends casts of a weight to copies of all rows, or to this rank's rows of copies that
// micro-batches gather.
func (p *Pass) castRows(w *Param, casts []backend.Cast) {
	var shared []backend.Cast
	casts = slices.DeleteFunc(casts, func(c backend.Cast) bool {
		shard := c.Out.Shard()
		if shard == nil {
			return false
		}
		if c.Out = shard; c.ScaleInv != nil {
			c.ScaleInv = shard.Scale
		}
		shared = append(shared, c)
		return true
	})
	if shared != nil {
		p.Add(&backend.Quantize{X: w.Master, Out: shared})
	}
	if len(casts) == 0 {
		return
	}
	if w.storesWhole() || !w.gathersCodes(casts, p.Ranks) {
		p.Add(&backend.Quantize{X: p.gather(w, "weight.whole"), Out: casts})
		return
	}
	own := slices.Clone(casts)
	for i, c := range casts {
		t := p.root.Temp(c.Out.Name+".shard", c.Out.DType, w.Master.Shape...)
		t.Scale, t.Block, t.Outer = c.Out.Scale, c.Out.Block, c.Out.Outer
		if c.ScaleInv != nil {
			rows, cols := t.Block.ScaleShape(t.Rows(), t.Cols())
			t.Scale = p.root.Temp(t.Name+".scale_inv", c.ScaleInv.DType, rows, cols)
			own[i].ScaleInv = t.Scale
		}
		own[i].Out = t
	}
	p.Add(&backend.Quantize{X: w.Master, Out: own})
	// On the queue of the casts: on another one, the rows of all weights would stay allocated
	// until the end of the program, since no later op of it reads the gathered codes.
	q := p.Program.Phase(backend.Comm)
	for i, c := range casts {
		gather(q, own[i].Out, c.Out, p.dataGroup())
		if c.ScaleInv != nil {
			gather(q, own[i].ScaleInv, c.ScaleInv, p.dataGroup())
		}
	}
}

// gathersCodes reports whether the ranks gather the codes of a sharded weight's casts; else they
// gather the master.
func (w *Param) gathersCodes(casts []backend.Cast, ranks int) bool {
	bytes := int64(0)
	for _, c := range casts {
		if !w.splits(c.Out, c.ScaleInv, ranks) {
			return false
		}
		if bytes += c.Out.Bytes(); c.ScaleInv != nil {
			bytes += c.ScaleInv.Bytes()
		}
	}
	return bytes <= int64(ranks)*w.Master.Bytes()
}

// splits reports whether the ranks' casts of their rows are rows of a copy, with its block scales
// scaleInv or nil.
func (w *Param) splits(out, scaleInv *backend.Tensor, ranks int) bool {
	rows, block := w.Master.Rows(), out.Block
	switch {
	case w.Part[0] != ranks*rows:
		return false // the last shard has padding, which the copies lack
	case out.DType.Size() == 0:
		return false // backend cuda does not transpose two codes in a byte
	case block != backend.PerTensor && (block.Rows == 0 || rows%block.Rows != 0):
		return false // a block scale spans rows of several ranks
	case scaleInv != nil && scaleInv.DType.IsQuantized() && !scaleInv.DType.IsForScales():
		return false // an operand in such a format needs a scale, which block scales lack
	}
	return true
}

// copyOf declares a copy of all rows of a weight, which casts c write and micro-batches read. At stage 3
// of ZeRO the rank stores its own rows, unless the copy cannot be split.
func (b *Base) copyOf(w *Param, name string, c Copy) *backend.Tensor {
	stash := func(name string, d fp8.DType, shape ...int) *backend.Tensor {
		return b.Vars.Tensor(backend.Stash, name, d, shape...)
	}
	declare := func(name string, shape []int, tensor func(string, fp8.DType, ...int) *backend.Tensor) *backend.Tensor {
		t := tensor(name, c.stored(), shape...)
		if c.blockScaled() {
			c.declareScale(t, tensor)
		}
		return t
	}
	sketch := declare(name, w.Part, func(name string, d fp8.DType, shape ...int) *backend.Tensor {
		return &backend.Tensor{Name: name, DType: d, Shape: shape}
	})
	var scales *backend.Tensor
	if c.blockScaled() {
		scales = sketch.Scale
	}
	if b.Stage < 3 || !w.Sharded() || !w.splits(sketch, scales, b.Shards) {
		return declare(name, w.Part, stash)
	}
	shard := declare(name+".shard", w.Master.Shape, stash)
	t := b.Vars.Gathered(name, shard, w.Part[0], b.shardGroup())
	if scales != nil {
		t.Scale = b.Vars.Gathered(scales.Name, shard.Scale, scales.Rows(), b.shardGroup())
	}
	return t
}

// shardAmaxes appends the amaxes of the weights of which a rank has a part and that have current scales,
// with one all-reduce over the ranks, and returns them by layer: F32 [1].
func (b *Base) shardAmaxes(p *Pass) map[*Linear]*backend.Tensor {
	var layers []*Linear
	for _, l := range b.linears {
		if l.copies == nil || l.weight.storesWhole() && l.weight.Split == NotSplit {
			continue
		}
		for i := range l.copies.casts {
			if p.hasCurrentScale(l.copies, i) {
				layers = append(layers, l)
				break
			}
		}
	}
	if layers == nil {
		return nil
	}
	packed, amaxes := p.Temp("weights.amax", fp8.F32, len(layers)), map[*Linear]*backend.Tensor{}
	for i, l := range layers {
		amaxes[l] = packed.Slice(l.copies.name+".amax", i, 1)
		p.named(l.Scope).Add(&backend.Amax{X: l.weight.Master, Out: amaxes[l]})
	}
	p.comm().Add(&backend.AllReduce{X: packed, Reduce: backend.ReduceMax})
	return amaxes
}
