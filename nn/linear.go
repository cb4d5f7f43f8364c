package nn

import (
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

// pair is the casts of a product's operands: activation or gradient first.
type pair struct{ a, b recipe.Cast }

func (m *Model) linear(scope string, in, out int, std float64, inLayer bool) *Linear {
	l := m.resolve(scope)
	name := scope + ".weight"
	if inLayer {
		name = "model." + name
	}
	l.weight = m.param(name, inLayer, std, out, in)
	m.linears = append(m.linears, l)
	return l
}

// resolve looks the casts up in the recipe.
func (m *Model) resolve(scope string) *Linear {
	cast := func(g recipe.GEMM, o recipe.Operand) recipe.Cast { return m.Recipe.Cast(scope, g, o) }
	return &Linear{
		scope: scope,
		fprop: pair{cast(recipe.Fprop, recipe.Input), cast(recipe.Fprop, recipe.Weight)},
		dgrad: pair{cast(recipe.Dgrad, recipe.Grad), cast(recipe.Dgrad, recipe.Weight)},
		wgrad: pair{cast(recipe.Wgrad, recipe.Grad), cast(recipe.Wgrad, recipe.Input)},
	}
}

// inputs and grads are the copies that the layer wants of x and of dy.
func (l *Linear) inputs() []recipe.Cast { return []recipe.Cast{l.fprop.a, l.wgrad.b} }
func (l *Linear) grads() []recipe.Cast  { return []recipe.Cast{l.dgrad.a, l.wgrad.a} }

// gradSlot declares the slot of dy where the layer is its only reader.
func (m *Model) gradSlot(l *Linear) *slot {
	return m.Scales.slot(l.scope+".grad", false, l.grads()...)
}

// cacheWeights declares the cached copies.
func (m *Model) cacheWeights(l *Linear) {
	l.copies = m.Scales.slot(l.scope+".weight", true, l.fprop.b, l.dgrad.b)
	l.cached = make([]*backend.Tensor, len(l.copies.casts))
	for i, c := range l.copies.casts {
		if c.DType == fp8.F32 && l.weight.Master.DType == fp8.F32 {
			l.cached[i] = l.weight.Master
			continue
		}
		l.cached[i] = m.Vars.Tensor(backend.Stash, l.weight.Name+"."+l.copies.names[i], c.DType, l.weight.Master.Shape...)
	}
}

// bindScales attaches the packed scales to the cached copies, once they exist.
func (l *Linear) bindScales(s *Scales) {
	for i := range l.cached {
		switch {
		case !l.copies.casts[i].DType.IsFP8():
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
	q := &backend.Quantize{X: l.weight.Master}
	var amax *backend.Tensor
	for i := range l.cached {
		c, r, t := l.copies.casts[i], l.copies.recs[i], l.cached[i]
		cast := backend.Cast{Out: t}
		switch {
		case t == l.weight.Master:
			continue
		case !c.DType.IsFP8():
		case c.Scaling == recipe.Unit:
			cast.Amax = r.amax
		case p.scaling(c) == recipe.Current:
			if amax == nil {
				amax = p.root.Temp(l.copies.name+".amax", fp8.F32, 1)
				p.Add(&backend.Amax{X: l.weight.Master, Out: amax})
			}
			p.Add(&backend.UpdateScale{
				History: amax, Seen: r.amax, Scale: r.scale, ScaleInv: r.scaleInv,
				Limit: c.Limit(), Pow2: true, Keep: true,
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
func (l *Linear) cachedAs(c recipe.Cast) *backend.Tensor { return l.cached[l.copies.index(c)] }

// Forward appends y = x·Wᵀ, plus residual where given.
func (l *Linear) Forward(p *Pass, x *operand, residual *backend.Tensor) *backend.Tensor {
	return l.forward(p, x, l.cachedAs(l.fprop.b), residual)
}

func (l *Linear) forward(p *Pass, x *operand, w, residual *backend.Tensor) *backend.Tensor {
	y := p.root.Temp(l.scope+".out", p.compute, p.Tokens(), w.Rows())
	p.named(l.scope).Add(&backend.MatMul{
		A: x.as(l.fprop.a), B: w, TransB: true,
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
