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
// reduced. Ranks that each update a part of the rows cast their parts with one scale.
//
// If the sum is not finite, scale_inv is NaN, since the codes of an FP8 format can lose an
// infinity: all values read are then NaN, and backend.StepGate skips the update.

// declareStoredGrad declares the gradient of p in format d.
func (p *Param) declareStoredGrad(vars *backend.Vars, d fp8.DType) {
	declare := func(name string, shape []int) *backend.Tensor {
		t := vars.Tensor(backend.Stash, name, d, shape...)
		if recipe.Scaled(d) {
			t.Scale = vars.Tensor(backend.Stash, name+".scale_inv", fp8.F32, 1)
		}
		return t
	}
	p.Grad = declare(p.Name+".grad", p.Shape)
	if p.Reduced = p.Grad; p.Sharded() {
		p.Reduced = declare(p.Name+".grad.shard", p.Master.Shape)
	}
}

// openGrad returns the tensor in FP32 to which a micro-batch adds dW: the gradient itself or, if
// that is stored in fewer bits, a temp with its values.
func (l *Linear) openGrad(p *Pass) *backend.Tensor {
	w := l.weight
	if w.Grad.DType == fp8.F32 {
		return w.Grad
	}
	p = p.At(l.Scope)
	padded := p.root.Temp(w.Name+".grad.fp32", fp8.F32, w.paddedShape(p.Ranks)...)
	if n := padded.Rows() - w.Shape[0]; n > 0 && p.Last {
		p.Add(&backend.Fill{Out: padded.RowRange(w.Shape[0], n)})
	}
	sum := w.withoutPadding(padded)
	if !p.First {
		p.Add(&backend.SumParts{X: w.Grad, Out: sum}) // of one part: dequantizes
	}
	return sum
}

// closeGrad stores sum, from openGrad, and in the last micro-batch reduces it over the ranks.
// These collectives are on the queue of the casts, as in exchangeCodes: on another one, the sums of
// all layers would stay allocated until the end of the program.
func (l *Linear) closeGrad(p *Pass, sum *backend.Tensor) {
	w := l.weight
	if sum == w.Grad {
		p.complete(w)
		return
	}
	p = p.At(l.Scope)
	if !p.Last || p.Ranks < 2 {
		p.storeGrad(sum, w.Grad, false)
		return
	}
	q := p.Program.Phase(backend.Comm)
	if !w.Sharded() {
		q.Add(&backend.AllReduce{X: sum})
		p.storeGrad(sum, w.Grad, false)
		return
	}
	rows := p.root.Temp(w.Reduced.Name+".fp32", fp8.F32, w.Reduced.Shape...)
	if p.reduce.FP32() {
		q.Add(&backend.ReduceScatter{X: sum.Root(), Out: rows})
	} else {
		wide := *w
		wide.paddedGrad, wide.Reduced = sum.Root(), rows
		p.exchangeCodes(&wide)
	}
	p.storeGrad(rows, w.Reduced, true)
}

// storeGrad casts x to a stored gradient, of which each rank has a part if shared.
func (p *Pass) storeGrad(x, to *backend.Tensor, shared bool) {
	cast := backend.Cast{Out: to}
	if to.Scale != nil {
		cast.Scale = p.root.Temp(to.Name+".scale", fp8.F32, 1)
		amax := p.root.Temp(to.Name+".amax", fp8.F32, 1)
		p.Add(&backend.Amax{X: x, Out: amax})
		if shared {
			p.Program.Phase(backend.Comm).Add(&backend.AllReduce{X: amax, Reduce: backend.ReduceMax})
		}
		p.Add(&backend.UpdateScale{History: amax, Scale: cast.Scale, ScaleInv: to.Scale, Limit: to.DType.Max(), Pow2: true})
	}
	p.Add(&backend.Quantize{X: x, Out: []backend.Cast{cast}})
}
