package nn

import (
	"fmt"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// Linear is y = x·Wᵀ and its two backward products, each operand in the format
// that the recipe gives it:
//
//	fprop   y  [tokens, out] = x [tokens, in]  · Wᵀ
//	dgrad   dx [tokens, in]  = dy [tokens, out] · W
//	wgrad   dW [out, in]     = dyᵀ · x
type Linear struct {
	scope  string
	weight *Param

	fprop, dgrad, wgrad pair

	// Cached copies of the weight, cast when the master changes. Smooth-SwiGLU's
	// w3 has none: it is cast in every micro-batch.
	copies *slot
	cached []*backend.Tensor
}

// pair is a product's operands: activation or gradient first.
type pair struct{ a, b stored }

// linear declares a layer of the decoder's layers; the head is not one.
func (m *Model) linear(scope string, in, out int, std float64) *Linear {
	l := m.resolve(scope)
	l.weight = m.param("model."+scope+".weight", true, std, out, in)
	m.linears = append(m.linears, l)
	return l
}

// resolve looks the casts up in the recipe. Its granularities follow K, the
// dimension that a product sums over. As they are stored, x [tokens, in],
// W [out, in] and dy [tokens, out] have it in their columns, but dgrad sums
// over W's rows, and wgrad over those of both operands.
func (m *Model) resolve(scope string) *Linear {
	at := func(g recipe.GEMM, o recipe.Operand) stored {
		s := stored{Cast: m.Recipe.Cast(scope, g, o)}
		across, along := s.Granularity.Block()
		s.block = backend.ScaleBlock{Rows: across, Cols: along}
		if g == recipe.Wgrad || g == recipe.Dgrad && o == recipe.Weight {
			s.block = backend.ScaleBlock{Rows: along, Cols: across}
		}
		return s
	}
	return &Linear{
		scope: scope,
		fprop: pair{at(recipe.Fprop, recipe.Input), at(recipe.Fprop, recipe.Weight)},
		dgrad: pair{at(recipe.Dgrad, recipe.Grad), at(recipe.Dgrad, recipe.Weight)},
		wgrad: pair{at(recipe.Wgrad, recipe.Grad), at(recipe.Wgrad, recipe.Input)},
	}
}

// check reports a choice of the recipe that the layer cannot follow.
func (l *Linear) check() error {
	for _, c := range []struct {
		gemm    recipe.GEMM
		operand recipe.Operand
		stored
	}{
		{recipe.Fprop, recipe.Input, l.fprop.a},
		{recipe.Fprop, recipe.Weight, l.fprop.b},
		{recipe.Dgrad, recipe.Grad, l.dgrad.a},
		{recipe.Dgrad, recipe.Weight, l.dgrad.b},
		{recipe.Wgrad, recipe.Grad, l.wgrad.a},
		{recipe.Wgrad, recipe.Input, l.wgrad.b},
	} {
		if err := c.Validate(); err != nil {
			return fmt.Errorf("%s: %s of %s: %w", l.scope, c.operand, c.gemm, err)
		}
	}
	if l.fprop.a.block.Rows > 1 {
		return fmt.Errorf("%s: input of fprop: %s lets tokens share a scale, and a token would see later ones (use granularity 1x128)", l.scope, l.fprop.a)
	}
	return nil
}

// inputs, grads and weights are the copies that the layer wants of x, dy and W.
func (l *Linear) inputs() []stored  { return []stored{l.fprop.a, l.wgrad.b} }
func (l *Linear) grads() []stored   { return []stored{l.dgrad.a, l.wgrad.a} }
func (l *Linear) weights() []stored { return []stored{l.fprop.b, l.dgrad.b} }

// gradSlot declares the slot of dy where the layer is its only reader.
func (m *Model) gradSlot(l *Linear) *slot {
	return m.Scales.slot(l.scope+".grad", l.grads()...)
}

// cacheWeights declares the cached copies.
func (m *Model) cacheWeights(l *Linear) {
	l.copies = m.Scales.weightSlot(l.scope+".weight", l.weights()...)
	l.cached = make([]*backend.Tensor, len(l.copies.casts))
	for i, c := range l.copies.casts {
		if c.DType == fp8.F32 && l.weight.Master.DType == fp8.F32 {
			l.cached[i] = m.wholeOf(l.weight)
			continue
		}
		stash := func(name string, d fp8.DType, shape ...int) *backend.Tensor {
			return m.Vars.Tensor(backend.Stash, name, d, shape...)
		}
		l.cached[i] = stash(l.weight.Name+"."+l.copies.names[i], c.DType, l.weight.Shape...)
		if c.byBlock() {
			c.declareScale(l.cached[i], stash)
		}
	}
}

// bindScales attaches the packed scales to the cached copies, once they exist.
func (l *Linear) bindScales(s *Scales) {
	for i := range l.cached {
		switch {
		case !l.copies.casts[i].DType.IsFP8() || l.copies.casts[i].byBlock():
		case l.copies.casts[i].Scaling == recipe.Unit:
			l.cached[i].Scale = s.one
		default:
			l.cached[i].Scale = l.copies.recs[i].scaleInv
		}
	}
}

// castWeight appends the casts from the master to the cached copies: in every
// update, and after loading. Current scales are chosen here, delayed ones by
// Scales.update before.
func (l *Linear) castWeight(p *Pass) {
	q := &backend.Quantize{}
	var amax *backend.Tensor
	for i := range l.cached {
		c, r, t := l.copies.casts[i], l.copies.recs[i], l.cached[i]
		if t == l.weight.whole {
			continue
		}
		if q.X == nil {
			q.X = p.gather(l.weight, "weight.whole")
		}
		cast := backend.Cast{Out: t}
		switch {
		case !c.DType.IsFP8():
		case c.byBlock():
			cast = c.blockCast(t)
		case c.Scaling == recipe.Unit:
			cast.Amax = r.amax
		case p.scaling(c) == recipe.Current:
			if amax == nil {
				amax = p.root.Temp(l.copies.name+".amax", fp8.F32, 1)
				p.Add(&backend.Amax{X: q.X, Out: amax})
			}
			p.Add(&backend.UpdateScale{
				History: amax, Seen: r.amax, Scale: r.scale, ScaleInv: r.scaleInv,
				Limit: c.Limit(), Pow2: c.pow2(), Keep: true,
			})
			cast.Scale = r.scale
		default:
			cast.Scale, cast.Amax = r.scale, r.amax
		}
		q.Out = append(q.Out, cast)
	}
	if len(q.Out) > 0 {
		p.Add(q)
	}
}

// cachedAs is the cached copy of the weight for a product.
func (l *Linear) cachedAs(c stored) *backend.Tensor { return l.cached[l.copies.index(c)] }

// Forward appends y = x·Wᵀ, plus residual where given.
func (l *Linear) Forward(p *Pass, x *operand, residual *backend.Tensor) *backend.Tensor {
	return l.forward(p, x, l.cachedAs(l.fprop.b), nil, residual)
}

// forward reads a copy w of the weight; rowScale multiplies the product's rows
// where given.
func (l *Linear) forward(p *Pass, x *operand, w, rowScale, residual *backend.Tensor) *backend.Tensor {
	y := p.root.Temp(l.scope+".out", p.compute, p.Tokens(), w.Rows())
	p.named(l.scope).Add(&backend.MatMul{
		A: x.as(l.fprop.a), B: w, TransB: true, RowScale: rowScale,
		Residual: residual, Out: y, Accum: backend.Fast,
	})
	return y
}

// Dgrad appends dx = dy·W into dx, or dx += if accumulate.
func (l *Linear) Dgrad(p *Pass, dy *operand, dx *backend.Tensor, accumulate bool) {
	l.dgradOf(p, dy, l.cachedAs(l.dgrad.b), dx, accumulate)
}

func (l *Linear) dgradOf(p *Pass, dy *operand, w, dx *backend.Tensor, accumulate bool) {
	p.named(l.scope).Add(&backend.MatMul{
		A: dy.as(l.dgrad.a), B: w, Out: dx, Accumulate: accumulate,
	})
}

// Wgrad appends dW = dyᵀ·x into the gradient; colScale multiplies its columns
// where given.
func (l *Linear) Wgrad(p *Pass, x, dy *operand, colScale *backend.Tensor) {
	p.named(l.scope).Add(&backend.MatMul{
		A: dy.as(l.wgrad.a), B: x.as(l.wgrad.b), TransA: true,
		ColScale: colScale, Out: l.weight.Grad, Accumulate: !p.First,
	})
	p.complete(l.weight)
}

// named returns the program with nodes stamped with a full path.
func (p *Pass) named(scope string) *backend.Program {
	return p.Program.At(scope)
}
