package nn

import (
	"fmt"
	"math"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// Linear is y = x·Wᵀ, plus a bias if it has one, with three GEMMs in a training step:
//
//	         result             operands                            summed over (K)
//	fprop    y  [tokens, out] = x  [tokens, in]  · Wᵀ [in, out]     in
//	dgrad    dx [tokens, in]  = dy [tokens, out] · W  [out, in]     out
//	wgrad    dW [out, in]     = dyᵀ [out, tokens] · x [tokens, in]  tokens
//
// The recipe gives each of the six operands a cast: format, scaling, granularity, scale
// format, rounding, rotation ([recipe.Recipe.Cast]). Each of x, dy and W has two readers: fprop and
// wgrad read x, dgrad and wgrad read dy, fprop and dgrad read W. Readers with equal casts
// share one copy; a tensor and its copies are a [Slot] ([Base.Slot]).
//
// Where each cast is made:
//
//   - x, by the op that computes it: a norm, attention or the activation stores its FP32
//     result through the casts of x's slot ([Pass.Store]). With unit, constant and delayed
//     scales no wider copy is stored;
//   - dy, likewise by the op of the backward that computes it;
//   - W, once per update: [Base.CastWeights] casts the masters to cached copies, which all
//     micro-batches read (castWeight). Per-channel Smooth-SwiGLU casts w3 in every
//     micro-batch, because it multiplies the columns by smoothing scales (smooth.go).
//
// When each scale is chosen (code = round(x·scale), and the GEMM multiplies by scale_inv):
//
//   - unit: never, it is 1; constant: at build time, see constantScale;
//   - delayed: at the end of an update, from the amax history of the last updates
//     ([Base.UpdateScales]). The cast needs no pass of its own, and records this step's
//     amax for the next update. A value beyond every amax of the history can saturate;
//   - current: between the op and the cast, from the tensor's own amax. The op stores a
//     copy in the compute format, and three ops follow: Amax, UpdateScale, Quantize
//     ([Pass.Close]). For W they read the master;
//   - per-row and per-block: by the cast itself, from the elements of each row or block of
//     a stored copy, for W of the master.
//
// A Hadamard transform of wgrad rotates x and dy along tokens before the cast. It reads the
// stored copy and rounds its result to the compute format, as Transformer Engine does; the
// amax is that of the result ([backend.Hadamard], [Pass.Close]).
//
// In evaluation and generation (mode [Frozen]) a current per-tensor scale of x comes from the
// amax history, too: a maximum over tokens would let earlier tokens depend on later ones.
//
// The GEMM sums in FP32 (fprop in the matrix unit's own accumulator, [backend.Fast]) and
// multiplies the sum by both scale_inv. If scales change along K, it multiplies each partial
// sum instead. y is stored in the compute format; dx too, or in FP32 where several layers
// add to it; dW in FP32, into which every micro-batch accumulates, unless the recipe stores it
// in fewer bits between micro-batches (grad.go).
//
// A bias is a vector in FP32. An op of its own adds it to y. The fourth GEMM of such a layer
// sums dy, in the compute format, over the tokens: db = 1ᵀ·dy.
type Linear struct {
	recipe.Layer
	weight *Param
	bias   *Param // added to y; nil: none
	grad   Copy   // of dy, whose sum over the tokens is the bias's gradient

	fprop, dgrad, wgrad pair

	// The slot of the weight and its cached copies, cast when the master changes.
	// Both are nil for the w3 of per-channel Smooth-SwiGLU, which every micro-batch
	// casts again.
	copies *Slot
	cached []*backend.Tensor

	l1 float64 // the largest L1 norm of a row of the weight's codes; 0: no bound
}

// pair holds the two operands of a GEMM, the activation or gradient first.
type pair struct{ a, b Copy }

// linear declares a linear layer. Its weight still needs cacheWeights.
func (b *Base) linear(layer recipe.Layer, split Split, in, out int, std float64) *Linear {
	return b.linearNamed(layer.Scope, layer, split, in, out, std)
}

// linearNamed is linear for a weight with another path than its layer.
func (b *Base) linearNamed(path string, layer recipe.Layer, split Split, in, out int, std float64) *Linear {
	l := b.resolve(layer, in)
	l.weight = b.splitParam(split, b.ParamPrefix+path+".weight", !layer.Router, std, out, in)
	l.l1 = b.l1Bound(l)
	b.linears = append(b.linears, l)
	return l
}

// Linear declares a linear layer with the weight [out, in]. scope is its path, which the
// recipe's rows match; std is the standard deviation of the initial weights.
func (b *Base) Linear(scope string, in, out int, std float64) *Linear {
	l := b.linear(recipe.Layer{Scope: scope}, NotSplit, in, out, std)
	b.cacheWeights(l)
	return l
}

// addBias declares the bias of a linear layer, which starts at 0.
func (b *Base) addBias(l *Linear) {
	split := SplitRows
	if l.weight.Split != SplitRows {
		split = NotSplit
	}
	l.bias, l.grad = b.splitParam(split, b.ParamPrefix+l.Scope+".bias", false, 0, l.weight.Shape[0]), b.Plain()
	l.bias.value = 0
}

// resolve looks up the casts in the recipe. It translates granularities, which
// the recipe gives relative to K, the dimension that a GEMM sums over, to blocks
// of the stored tensors x [tokens, in], W [out, in] and dy [tokens, out]: fprop
// and dgrad's dy have K along their rows; dgrad's W and both operands of wgrad
// have it along their columns. in is the width of x.
func (b *Base) resolve(layer recipe.Layer, in int) *Linear {
	at := func(g recipe.GEMM, o recipe.Operand) Copy {
		s := Copy{Cast: b.Recipe.Cast(layer, g, o)}
		across, along := s.Granularity.Block()
		s.Block = backend.ScaleBlock{Rows: across, Cols: along}
		if g == recipe.Wgrad || g == recipe.Dgrad && o == recipe.Weight {
			s.Block = backend.ScaleBlock{Rows: along, Cols: across}
		}
		if s.Scaling == recipe.Constant {
			s.Constant, _ = fp8.ScaleFor(1, b.constantScale(o, in), s.pow2())
		}
		return s
	}
	return &Linear{
		Layer: layer,
		fprop: pair{at(recipe.Fprop, recipe.Input), at(recipe.Fprop, recipe.Weight)},
		dgrad: pair{at(recipe.Dgrad, recipe.Grad), at(recipe.Dgrad, recipe.Weight)},
		wgrad: pair{at(recipe.Wgrad, recipe.Grad), at(recipe.Wgrad, recipe.Input)},
	}
}

// constantScale returns the scale of an operand with constant scaling, of a layer with in inputs.
func (b *Base) constantScale(o recipe.Operand, in int) float32 {
	switch o {
	case recipe.Weight:
		return float32(math.Sqrt(float64(in)))
	case recipe.Grad:
		return float32(max(1, b.StepTokens))
	}
	return 1
}

// check reports a cast of the recipe that the layer cannot use.
func (l *Linear) check() error {
	for _, c := range []struct {
		gemm    recipe.GEMM
		operand recipe.Operand
		Copy
	}{
		{recipe.Fprop, recipe.Input, l.fprop.a},
		{recipe.Fprop, recipe.Weight, l.fprop.b},
		{recipe.Dgrad, recipe.Grad, l.dgrad.a},
		{recipe.Dgrad, recipe.Weight, l.dgrad.b},
		{recipe.Wgrad, recipe.Grad, l.wgrad.a},
		{recipe.Wgrad, recipe.Input, l.wgrad.b},
	} {
		if err := c.Validate(); err != nil {
			return fmt.Errorf("%s: %s of %s: %w", l.Scope, c.operand, c.gemm, err)
		}
		if c.Scaling == recipe.Direction && c.operand != recipe.Grad {
			return fmt.Errorf("%s: %s of %s has scaling direction, which is for gradients (give its row operand grad)", l.Scope, c.operand, c.gemm)
		}
		if c.Hadamard.On() && c.gemm != recipe.Wgrad {
			return fmt.Errorf("%s: %s of %s has %s, but both operands of a GEMM must be rotated, and weights are not (use gemm wgrad)", l.Scope, c.operand, c.gemm, c.Hadamard)
		}
	}
	if w := l.fprop.b; l.l1 != 0 && (w.blockScaled() || w != l.dgrad.b || l.weight.Sharded()) {
		return fmt.Errorf("%s: weight of fprop: %s: l1_bits needs whole weights on every rank, and one scale and copy of them for fprop and dgrad (use granularity tensor for weights, and train.zero_stage 0)", l.Scope, w)
	}
	if a, b := l.wgrad.a.Hadamard, l.wgrad.b.Hadamard; a != b {
		return fmt.Errorf("%s: grad of wgrad has %s and input %s: wgrad keeps its result only if both are rotated alike (give both one row, with gemm wgrad and no operand)", l.Scope, a, b)
	}
	if a := l.fprop.a; a.DType.IsQuantized() && !a.blockScaled() && !a.DType.HasNaN() {
		return fmt.Errorf("%s: input of fprop: %s: %s has no NaN, and evaluation takes a scale per tensor from earlier updates, so that a NaN would vanish (use granularity row or 1x32, whose scales carry it)", l.Scope, a, a.DType)
	}
	if l.fprop.a.Block.Rows > 1 {
		return fmt.Errorf("%s: input of fprop: %s shares scales between tokens, so a token would depend on later ones (use granularity 1x128)", l.Scope, l.fprop.a)
	}
	return nil
}

// Inputs returns the copies of x that the layer reads.
func (l *Linear) Inputs() []Copy { return []Copy{l.fprop.a, l.wgrad.b} }

// Grads returns the copies of dy that the layer reads.
func (l *Linear) Grads() []Copy {
	if l.bias != nil {
		return []Copy{l.dgrad.a, l.wgrad.a, l.grad}
	}
	return []Copy{l.dgrad.a, l.wgrad.a}
}

// weights returns the copies of W that the layer reads.
func (l *Linear) weights() []Copy { return []Copy{l.fprop.b, l.dgrad.b} }

// gradSlot declares the slot of a dy that only l reads.
func (b *Base) gradSlot(l *Linear) *Slot {
	return b.Slot(l.Scope+".grad", l.Grads()...)
}

// cacheWeights declares the slot of the weight and its cached copies.
func (b *Base) cacheWeights(l *Linear) {
	l.copies = b.Scales.declare(l.Scope+".weight", true, l.weights())
	l.cached = make([]*backend.Tensor, len(l.copies.casts))
	for i, c := range l.copies.casts {
		if c.DType == fp8.F32 && l.weight.Master.DType == fp8.F32 {
			l.cached[i] = b.wholeOf(l.weight)
			continue
		}
		l.cached[i] = b.copyOf(l.weight, l.weight.Name+"."+l.copies.names[i], c)
	}
}

// bindScales attaches the packed scales to the cached copies. Scales.pack has declared them.
func (l *Linear) bindScales(s *Scales) {
	for i := range l.cached {
		switch {
		case l.copies.recs[i] == nil:
		case l.copies.casts[i].blockScaled():
			l.cached[i].Outer = l.copies.recs[i].scaleInv
		case l.copies.casts[i].Scaling == recipe.Unit:
			l.cached[i].Scale = s.one
		default:
			l.cached[i].Scale = l.copies.recs[i].scaleInv
		}
		if shard := l.cached[i].Shard(); shard != nil && shard != l.weight.Master {
			if shard.Outer = l.cached[i].Outer; !l.copies.casts[i].blockScaled() {
				shard.Scale = l.cached[i].Scale
			}
		}
	}
}

// castWeight appends the casts from the master to the cached copies. They run in
// every update and after loading. castWeight computes current scales from amax, or if that is
// nil from the master's; Scales.update has already computed delayed ones.
func (l *Linear) castWeight(p *Pass, amax *backend.Tensor) {
	var casts []backend.Cast
	for i := range l.cached {
		c, r, t := l.copies.casts[i], l.copies.recs[i], l.cached[i]
		if t == l.weight.whole {
			continue
		}
		cast := c.cast(t)
		if c.blockScaled() {
			cast = c.blockCast(t)
		}
		switch {
		case r == nil:
		case c.Scaling == recipe.Unit:
			cast.Amax = r.amax
		case p.hasCurrentScale(l.copies, i):
			if amax == nil {
				amax = p.root.Temp(l.copies.name+".amax", fp8.F32, 1)
				l.boundedAmax(p, amax)
			}
			p.Add(&backend.UpdateScale{
				History: amax, Seen: r.amax, Scale: r.scale, ScaleInv: r.scaleInv,
				Limit: c.Limit(), Pow2: c.pow2(), Outer: c.Scale.Outer, Keep: true,
			})
			cast.Scale = r.scale
		default:
			cast.Scale, cast.Amax = r.scale, r.amax
		}
		casts = append(casts, cast)
	}
	switch {
	case len(casts) > 0 && l.l1 != 0:
		p.Add(&truncated{X: l.weight.whole, Scale: casts[0].Scale, Out: casts})
	case len(casts) > 0:
		p.castRows(l.weight, casts)
	}
}

// cachedAs returns the cached copy of the weight that c describes.
func (l *Linear) cachedAs(c Copy) *backend.Tensor { return l.cached[l.copies.index(c)] }

// Forward appends y = x·Wᵀ + bias + residual; residual may be nil.
func (l *Linear) Forward(p *Pass, x *Value, residual *backend.Tensor) *backend.Tensor {
	y := l.forward(p, x, l.cachedAs(l.fprop.b), nil, residual)
	if l.bias == nil {
		return y
	}
	sum := p.root.Temp(l.Scope+".sum", p.compute, y.Rows(), y.Cols())
	p.named(l.Scope).Add(&backend.Add{A: y, B: l.bias.Master, Out: []backend.Cast{{Out: sum}}})
	return sum
}

// forward is Forward with the copy w of the weight. Unless nil, rowScale
// multiplies the rows of x·Wᵀ.
func (l *Linear) forward(p *Pass, x *Value, w, rowScale, residual *backend.Tensor) *backend.Tensor {
	y := p.root.Temp(l.Scope+".out", p.compute, p.Tokens(), w.Rows())
	op := &backend.MatMul{
		A: x.As(l.fprop.a), B: w, TransB: true, RowScale: rowScale,
		Residual: residual, Out: y, Accum: backend.Fast, Used: p.used,
	}
	if l.weight.Split != SplitColumns {
		p.named(l.Scope).Add(op)
		return y
	}
	op.Residual = nil
	p.named(l.Scope).Add(op)
	return p.At(l.Scope).reduceTokens(y, residual)
}

// Dgrad appends dx = dy·W, or dx += dy·W if accumulate.
func (l *Linear) Dgrad(p *Pass, dy *Value, dx *backend.Tensor, accumulate bool) {
	l.dgradOf(p, dy, l.cachedAs(l.dgrad.b), dx, accumulate)
}

func (l *Linear) dgradOf(p *Pass, dy *Value, w, dx *backend.Tensor, accumulate bool) {
	p.named(l.Scope).Add(&backend.MatMul{
		A: dy.As(l.dgrad.a), B: w, Out: dx, Accumulate: accumulate, Used: p.used,
	})
}

// Wgrad appends dW = dyᵀ·x into the weight's gradient, and the bias's gradient. Unless nil,
// colScale multiplies the columns of dyᵀ·x.
func (l *Linear) Wgrad(p *Pass, x, dy *Value, colScale *backend.Tensor) {
	if l.bias != nil {
		l.biasGrad(p, dy)
	}
	q := p.At(l.Scope)
	sum, accumulate := q.openGrad(l.weight)
	used := p.used
	if l.wgrad.a.Hadamard.On() {
		used = nil // a rotation along tokens gives rows of zeros values
	}
	q.Add(&backend.MatMul{
		A: dy.As(l.wgrad.a), B: x.As(l.wgrad.b), TransA: true,
		ColScale: colScale, Out: sum, Accumulate: accumulate, Used: used,
	})
	q.closeGrad(l.weight, sum)
}

// biasGrad appends db = 1ᵀ·dy into the bias's gradient.
func (l *Linear) biasGrad(p *Pass, dy *Value) {
	q := p.named(l.Scope)
	ones := p.root.Temp(l.Scope+".ones", p.compute, 1, p.Tokens())
	q.Add(&backend.Fill{Out: ones, Value: 1})
	q.Add(&backend.MatMul{A: ones, B: dy.As(l.grad), Out: l.bias.Grad, Accumulate: !p.First})
	p.complete(l.bias)
}

// named returns the program, which records nodes under the full path scope.
func (p *Pass) named(scope string) *backend.Program {
	return p.Program.At(scope)
}
