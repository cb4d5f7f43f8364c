package nn

import (
	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// This file stores the weight gradients of linear layers in fewer bits than FP32
// (recipe.Optimizer.Grad), as FP8-LM does (arXiv 2310.18313; add_to_fp8 of Azure/MS-AMP). In each
// micro-batch the gradient is in FP32 only while one layer needs it:
//
//	sum   = codes · scale_inv              a temp in FP32; not in the first micro-batch
//	sum   = sum + dyᵀ·x                    the wgrad GEMM
//	scale = 2^⌊log2(limit / amax(sum))⌋    one for the tensor
//	codes = round(sum · scale)             to nearest
//
// With several ranks the last micro-batch reduces the sum before the cast, as FP32 gradients are
// reduced. Ranks that each update a part of the rows cast their parts with one scale. From stage 2
// of ZeRO on every micro-batch scatters its own dW and adds its rows to those of the earlier ones.
//
// If the sum is not finite, scale_inv is NaN, since the codes of an FP8 format can lose an
// infinity: all values read are then NaN, and backend.StepGate skips the update.

// declareStoredGrad declares the gradient of p in format d between micro-batches.
func (p *Param) declareStoredGrad(vars *backend.Vars, d fp8.DType) {
	declare := func(name string, shape []int) *backend.Tensor {
		t := vars.Tensor(backend.Stash, name, d, shape...)
		if recipe.Scaled(d) {
			t.Scale = vars.Tensor(backend.Stash, name+".scale_inv", fp8.F32, 1)
		}
		return t
	}
	if !p.scatters {
		p.Grad = declare(p.Name+".grad", p.Part)
	}
	if p.Reduced = p.Grad; p.Sharded() {
		p.Reduced = declare(p.Name+".grad.shard", p.Master.Shape)
	}
}

// openGrad returns the tensor in FP32 to which a micro-batch adds dW, and whether it holds the sum of
// earlier ones: the gradient itself or, if that is stored otherwise, a temp.
func (p *Pass) openGrad(w *Param) (sum *backend.Tensor, accumulate bool) {
	if w.Grad != nil && w.Grad.DType == fp8.F32 {
		return w.Grad, !p.First
	}
	padded := p.root.Temp(w.Name+".grad.fp32", fp8.F32, w.paddedShape(p.Ranks)...)
	if n := padded.Rows() - w.Part[0]; n > 0 && (p.Last || w.scatters) {
		p.Add(&backend.Fill{Out: padded.RowRange(w.Part[0], n)})
	}
	sum = w.withoutPadding(padded)
	if p.First || w.scatters {
		return sum, false
	}
	p.Add(&backend.SumParts{X: w.Grad, Out: sum}) // of one part: dequantizes
	return sum, true
}

// closeGrad stores sum, from openGrad, and reduces it over the ranks: in the last micro-batch, or in
// each. Those of the last are on the queue of the casts, as in exchangeCodes: on another one, the sums
// of all layers would stay allocated until the end of the program.
func (p *Pass) closeGrad(w *Param, sum *backend.Tensor) {
	switch {
	case sum == w.Grad:
		p.complete(w)
	case w.scatters:
		p.addRows(w, sum.Root())
	case !p.Last || p.Ranks < 2:
		p.storeGrad(w, sum, w.Grad)
	case !w.Sharded():
		p.Program.Phase(backend.Comm).Add(&backend.AllReduce{X: sum, Group: p.dataGroup()})
		p.storeGrad(w, sum, w.Grad)
	default:
		rows := p.root.Temp(w.Reduced.Name+".fp32", fp8.F32, w.Reduced.Shape...)
		p.scatterGrad(p.Program, w, sum.Root(), rows)
		p.storeGrad(w, rows, w.Reduced)
	}
}

// addRows scatters the gradient of a micro-batch and adds this rank's rows to those of the earlier
// ones: with the next gradient, or in Settle, so that the collective can run beside the ops up to there.
// In programs whose gradients no op reads it does nothing.
func (p *Pass) addRows(w *Param, grad *backend.Tensor) {
	if p.Discard {
		return
	}
	p.Settle()
	rows := p.root.Temp(w.Reduced.Name+".fp32", fp8.F32, w.Reduced.Shape...)
	p.scatterGrad(p.comm(), w, grad, rows)
	path := p.Path()
	*p.unsettled = func(q *Pass) { // in the block of q
		q = q.At(path)
		if w.Reduced.DType == fp8.F32 {
			q.Add(&backend.SumParts{X: rows, Out: w.Reduced, Accumulate: !q.First})
			return
		}
		if !q.First {
			q.Add(&backend.SumParts{X: w.Reduced, Out: rows, Accumulate: true})
		}
		q.storeGrad(w, rows, w.Reduced)
	}
}

// Settle appends what a scattered gradient still needs. It ends a micro-batch.
func (p *Pass) Settle() {
	if add := *p.unsettled; add != nil {
		*p.unsettled = nil
		add(p)
	}
}

// storeGrad casts x to a stored gradient of w: Grad, or this rank's rows.
func (p *Pass) storeGrad(w *Param, x, to *backend.Tensor) {
	cast := backend.Cast{Out: to}
	if to.Scale != nil {
		cast.Scale = p.root.Temp(to.Name+".scale", fp8.F32, 1)
		amax := p.root.Temp(to.Name+".amax", fp8.F32, 1)
		p.Add(&backend.Amax{X: x, Out: amax})
		switch {
		case to != w.Grad: // every rank has other rows
			p.Program.Phase(backend.Comm).Add(&backend.AllReduce{X: amax, Reduce: backend.ReduceMax})
		case w.Split != NotSplit:
			p.maxOverParts(amax)
		}
		p.Add(&backend.UpdateScale{History: amax, Scale: cast.Scale, ScaleInv: to.Scale, Limit: to.DType.Max(), Pow2: true})
	}
	p.Add(&backend.Quantize{X: x, Out: []backend.Cast{cast}})
}
