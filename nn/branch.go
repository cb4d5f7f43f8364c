package nn

import (
	"octet/backend"
	"octet/fp8"
)

// branch joins attention or an MLP, f, to the residual stream x [tokens, dim]. With the norms
// and the layer scale γ that Config asks for, and without those that it does not,
//
//	y = x + γ ⊙ post(f(pre(x)))
//
// With neither γ nor post, the last GEMM of f adds x. Without pre, f's GEMMs read the residual
// stream itself, in the casts of the slot input.
type branch struct {
	scope     string // of f
	pre, post *RMSNorm
	scale     *LayerScale

	input *Slot // what f reads
	grad  *Slot // the gradient of f's result, which f's backward reads
	out   *Slot // the gradient of y: grad if the GEMM of f adds x, else one plain copy
}

type branchSaved struct {
	pre, post *normSaved
	f         *backend.Tensor // what scale multiplies
}

// branch declares the norms of a branch, or its layer scale. pre is the path of the norm before
// f, scope that of f. The declaration of f and a call of around follow.
func (m *Model) branch(pre, scope string) *branch {
	c := m.Config
	b := &branch{scope: scope}
	if c.Norm != PostNorm {
		b.pre = m.RMSNorm(pre, c.Dim, c.NormEps)
	}
	switch {
	case c.Norm == PostNorm || c.Norm == BothNorms:
		b.post = m.RMSNorm(scope+".post_norm", c.Dim, c.NormEps)
		if c.NormGain != 0 {
			b.post.gain.value = float32(c.NormGain)
		}
	case c.LayerScale != nil:
		b.scale = m.LayerScale(scope, c.Dim, *c.LayerScale)
	}
	return b
}

// around declares the slots of a branch, given those of its f.
func (b *branch) around(m *Base, input, grad *Slot) {
	b.input, b.grad, b.out = input, grad, grad
	if b.post != nil || b.scale != nil {
		b.out = m.Slot(b.scope+".residual.grad", m.Plain())
	}
}

// enter appends what f reads.
func (b *branch) enter(p *Pass, x *backend.Tensor) (*Value, *branchSaved) {
	if b.pre == nil {
		return p.castStored(b.input, x), &branchSaved{}
	}
	h, saved := b.pre.Forward(p, x, b.input)
	return h, &branchSaved{pre: saved}
}

// residual returns what the last GEMM of f adds: x, or nil if leave adds it.
func (b *branch) residual(x *backend.Tensor) *backend.Tensor {
	if b.post != nil || b.scale != nil {
		return nil
	}
	return x
}

// leave appends y, given the result of f.
func (b *branch) leave(p *Pass, x, f *backend.Tensor, s *branchSaved) *backend.Tensor {
	s.f = f
	switch {
	case b.scale != nil:
		return b.scale.forward(p, f, x)
	case b.post != nil:
		q := p.At(b.post.scope)
		normed, cast := q.store("out", f.Rows(), f.Cols())
		s.post = b.post.forward(q, f, cast)
		y, cast := q.store("sum", f.Rows(), f.Cols())
		q.Add(&backend.Add{A: x, B: normed, Out: cast})
		return y
	}
	return f
}

// outputGrad appends the gradient of f's result, given that of y.
func (b *branch) outputGrad(p *Pass, s *branchSaved, dy *Value) *Value {
	switch {
	case b.scale != nil:
		return b.scale.backward(p, s.f, p.Plain(dy), b.grad)
	case b.post != nil:
		return b.post.Backward(p, s.post, p.Plain(dy), nil, b.grad)
	}
	return dy
}

// inputGrad appends the gradient of x in the copies of slot below, given those of f's input and
// of y.
func (b *branch) inputGrad(p *Pass, s *branchSaved, dx *backend.Tensor, dy *Value, below *Slot) *Value {
	if b.pre != nil {
		return b.pre.Backward(p, s.pre, dx, p.Plain(dy), below)
	}
	return p.Store(below, dx.Rows(), dx.Cols(), func(out []backend.Cast) backend.Op {
		return &backend.Add{A: dx, B: p.Plain(dy), Out: out}
	})
}

// LayerScale multiplies the result f of a residual branch by a learned vector γ: y = x + γ ⊙ f
// (Touvron et al., "Going deeper with image transformers", 2021).
type LayerScale struct {
	scope string
	gamma *Param
}

// LayerScale declares the layer scale of the layer at path scope, whose elements all start at
// initial. Its parameter is ParamPrefix + scope + ".layer_scale.weight".
func (b *Base) LayerScale(scope string, dim int, initial float64) *LayerScale {
	l := &LayerScale{scope: scope + ".layer_scale", gamma: b.param(b.ParamPrefix+scope+".layer_scale.weight", false, 0, dim)}
	l.gamma.value = float32(initial)
	return l
}

func (l *LayerScale) forward(p *Pass, f, x *backend.Tensor) *backend.Tensor {
	q := p.At(l.scope)
	scaled, cast := q.store("scaled", f.Rows(), f.Cols())
	q.Add(&backend.Quantize{X: f, ColScale: l.gamma.Master, Out: cast})
	y, cast := q.store("out", f.Rows(), f.Cols())
	q.Add(&backend.Add{A: x, B: scaled, Out: cast})
	return y
}

// backward appends df = γ ⊙ dy in the copies of a slot, and dγ = Σ_t dy ⊙ f.
func (l *LayerScale) backward(p *Pass, f, dy *backend.Tensor, to *Slot) *Value {
	q := p.At(l.scope)
	// The gradient of a norm's gain is the sum of dy ⊙ f·InvRMS over the tokens.
	ones := q.filled("ones", f.Rows(), 1)
	_, unused := q.store("unused", f.Rows(), f.Cols())
	q.Add(&backend.RMSNormGrad{
		DOut: dy, X: f, Gain: l.gamma.Master, InvRMS: ones, DX: unused, DGain: l.gamma.Grad, Accumulate: !p.First,
	})
	q.complete(l.gamma)
	return q.Store(to, dy.Rows(), dy.Cols(), func(out []backend.Cast) backend.Op {
		return &backend.Quantize{X: dy, ColScale: l.gamma.Master, Out: out}
	})
}

// filled appends a vector of n elements of one value.
func (p *Pass) filled(name string, n int, value float32) *backend.Tensor {
	t := p.Temp(name, fp8.F32, n)
	p.Add(&backend.Fill{Out: t, Value: value})
	return t
}
