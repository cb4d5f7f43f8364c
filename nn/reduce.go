package nn

import (
	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// This file reduces gradients over the ranks.

// complete marks a gradient as final. In the last micro-batch it appends the
// gradient's reduction over ranks, which overlaps the rest of the backward.
func (p *Pass) complete(param *Param) {
	switch {
	case p.Last && p.tensor > 1 && param.Split == NotSplit:
		p.comm().Add(&backend.AllReduce{X: param.Grad})
	case !p.Last || p.Ranks < 2:
	case !param.Sharded():
		p.comm().Add(&backend.AllReduce{X: param.Grad, Group: p.dataGroup()})
	default:
		p.scatterGrad(p.comm(), param, param.paddedGrad, param.Reduced)
	}
}

// scatterGrad appends the reduce-scatter of a weight's gradient, padding included, to this rank's
// rows, in the format of the recipe: in FP32 as a collective on q.
func (p *Pass) scatterGrad(q *backend.Program, w *Param, grad, rows *backend.Tensor) {
	if w.Quantized && !p.reduce.FP32() {
		p.exchangeCodes(w, grad, rows)
		return
	}
	q.Phase(backend.Comm).Add(&backend.ReduceScatter{X: grad, Out: rows, Group: p.dataGroup()})
}

// exchangeCodes appends the reduce-scatter of a gradient in the recipe's format: each rank
// casts its gradient, sends each rank the codes of that rank's rows, and adds those
// that it receives, in FP32 and in order of rank.
func (p *Pass) exchangeCodes(w *Param, grad, rows *backend.Tensor) {
	c := Copy{Cast: p.reduce.Cast()}
	c.Block.Rows, c.Block.Cols = c.Granularity.Block()
	name := w.Name + ".grad." + c.DType.String()
	codes := p.root.Temp(name, c.DType, grad.Shape...)
	parts := p.root.Temp(name+".parts", c.DType, grad.Shape...)
	// On the queue of the casts, as for castRows: on another one, the codes of all layers
	// would stay allocated until the end of the program.
	q := p.Program.Phase(backend.Comm)
	switch {
	case !c.DType.IsQuantized():
		p.Add(&backend.Quantize{X: grad, Out: []backend.Cast{c.cast(codes)}})
	case c.blockScaled():
		c.declareScale(codes, p.root.Temp)
		c.declareScale(parts, p.root.Temp)
		p.Add(&backend.Quantize{X: grad, Out: []backend.Cast{c.blockCast(codes)}})
		q.Add(&backend.AllToAll{X: codes.Scale, Out: parts.Scale, Group: p.dataGroup()})
	default:
		p.Add(&backend.Quantize{X: grad, Out: []backend.Cast{p.castCurrent(c, w, grad, codes)}})
		if parts.Scale = codes.Scale; p.reduce.Scale != recipe.RankScale {
			break
		}
		parts.Block = backend.ScaleBlock{Rows: rows.Rows()}
		parts.Scale = p.root.Temp(parts.Name+".scale_inv", fp8.F32, p.Ranks, 1)
		gather(q, codes.Scale, parts.Scale, p.dataGroup())
	}
	q.Add(&backend.AllToAll{X: codes, Out: parts, Group: p.dataGroup()})
	p.Add(&backend.SumParts{
		X: parts, Out: rows, AtMax: w.atMax,
		Rounded: p.reduce.Sum != recipe.SumFP32, Each: p.reduce.Sum == recipe.SumEach,
	})
}

// castCurrent appends the ops that choose a scale for t from the amax of grad, the gradient of w, and
// returns the cast from it to t.
func (p *Pass) castCurrent(c Copy, w *Param, grad, t *backend.Tensor) backend.Cast {
	amax := p.root.Temp(t.Name+".amax", fp8.F32, 1)
	scale := p.root.Temp(t.Name+".scale", fp8.F32, 1)
	t.Scale = p.root.Temp(t.Name+".scale_inv", fp8.F32, 1)
	p.Add(&backend.Amax{X: grad, Out: amax})
	update := &backend.UpdateScale{History: amax, Scale: scale, ScaleInv: t.Scale, Limit: c.Limit(), Pow2: c.pow2()}
	p.shareScale(update, w)
	p.Add(update)
	return backend.Cast{Out: t, Scale: scale}
}
