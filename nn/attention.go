package nn

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// Attention is grouped-query causal self-attention with rotary positions.
type Attention struct {
	scope      string
	index      int // of its keys and values in a Cache
	q, k, v, o *Linear
	// of the heads of q and k before the rotation, or nil
	qNorm, kNorm *RMSNorm
	headDim      int
	theta        float64
	scaling      RopeScaling

	input          *Slot // output of the preceding norm, which q, k and v read
	output         *Slot // read by o_proj and by the backward
	dq, dk, dv     *Slot
	heads, kvHeads int // of this rank
}

// AttentionShape is the size of an attention layer. Widths are in elements.
type AttentionShape struct {
	Dim, Heads, KVHeads int
	HeadDim             int // 0: Dim / Heads
	RopeTheta           float64
	RopeScaling         RopeScaling
	InitStd, OutStd     float64 // of the initial weights; OutStd of o_proj
	QKVBias             bool    // q_proj, k_proj and v_proj have a bias
	QKNorm              QKNorm  // of the queries and keys, with NormEps; empty: none
	NormEps             float64
}

// RopeScaling divides frequencies of the rotation by Factor, in the words of transformers:
// rope_type linear if Original, original_max_position_embeddings, is 0, else llama3. The zero
// value divides none. See [backend.Rope].
type RopeScaling struct {
	Factor, LowFreq, HighFreq float64
	Original                  int
}

// Validate returns an error for numbers that [backend.Rope] refuses.
func (s RopeScaling) Validate() error {
	llama3 := s.Original > 0 && s.LowFreq > 0 && s.HighFreq > s.LowFreq && !math.IsInf(s.HighFreq, 1)
	if s == (RopeScaling{}) || s.Factor >= 1 && !math.IsInf(s.Factor, 1) && (llama3 || s == RopeScaling{Factor: s.Factor}) {
		return nil
	}
	return fmt.Errorf("%v: expected a factor of at least 1, or with it two positive numbers in ascending order and a number of positions", s)
}

// Attention declares an attention layer.
func (b *Base) Attention(scope string, s AttentionShape) *Attention {
	headDim := cmp.Or(s.HeadDim, s.Dim/s.Heads)
	width, kv := s.Heads*headDim, s.KVHeads*headDim
	a := &Attention{scope: scope, index: len(b.attentions), headDim: headDim, theta: s.RopeTheta, scaling: s.RopeScaling, heads: s.Heads / b.tensor(), kvHeads: s.KVHeads / b.tensor()}
	a.q = b.linear(recipe.Layer{Scope: scope + ".q_proj"}, SplitRows, s.Dim, width, s.InitStd)
	a.k = b.linear(recipe.Layer{Scope: scope + ".k_proj"}, SplitRows, s.Dim, kv, s.InitStd)
	a.v = b.linear(recipe.Layer{Scope: scope + ".v_proj"}, SplitRows, s.Dim, kv, s.InitStd)
	a.o = b.linear(recipe.Layer{Scope: scope + ".o_proj"}, SplitColumns, width, s.Dim, s.OutStd)
	if s.QKVBias {
		for _, l := range []*Linear{a.q, a.k, a.v} {
			b.addBias(l)
		}
	}
	a.qNorm, a.kNorm = b.headNorm(scope+".q_norm", headDim, s), b.headNorm(scope+".k_norm", headDim, s)
	a.input = b.tokenSlot(scope+".input", slices.Concat(a.q.Inputs(), a.k.Inputs(), a.v.Inputs()))
	a.output = b.Slot(scope+".output", append(a.o.Inputs(), b.Plain())...)
	a.dq, a.dk, a.dv = b.gradSlot(a.q), b.gradSlot(a.k), b.gradSlot(a.v)
	for _, l := range []*Linear{a.q, a.k, a.v, a.o} {
		b.cacheWeights(l)
	}
	b.attentions = append(b.attentions, a)
	return a
}

// Input returns the slot that the layer reads.
func (a *Attention) Input() *Slot { return a.input }

// OutputGrad declares the slot of the gradient that Backward reads, with a plain copy for
// the residual branch. Call it once.
func (a *Attention) OutputGrad(b *Base) *Slot {
	return b.tokenSlot(a.o.Scope+".grad", a.o.Grads(), b.Plain())
}

type attentionSaved struct {
	x, out       *Value
	q, k, v, lse *backend.Tensor // q and k after the rotation
	qNorm, kNorm *normSaved      // nil without norms
}

// Forward appends residual + attention(x); residual may be nil.
func (a *Attention) Forward(p *Pass, x *Value, residual *backend.Tensor) (*backend.Tensor, *attentionSaved) {
	q := p.At(a.scope)
	s := &attentionSaved{x: x}
	queries, keys, values := a.q.Forward(q, x, nil), a.k.Forward(q, x, nil), a.v.Forward(q, x, nil)
	queries, s.qNorm = a.qNorm.heads(q, queries, a.headDim)
	keys, s.kNorm = a.kNorm.heads(q, keys, a.headDim)
	s.q, s.k, s.v = a.rotate(q, "q", queries), a.rotate(q, "k", keys), values
	op := &backend.Attention{Q: s.q, K: s.k, V: s.v, Start: p.Start, Batch: p.Batch, HeadDim: a.headDim}
	if p.Cache != nil {
		op.K, op.V = a.cached(q, "k", s.k, p.Cache.K[a.index]), a.cached(q, "v", s.v, p.Cache.V[a.index])
		op.Control = p.Control
	}
	if p.Mode != Frozen {
		s.lse = q.Temp("lse", fp8.F32, p.Batch*a.heads, p.Seq)
		op.LSE = s.lse
	}
	s.out = q.Store(a.output, s.q.Rows(), s.q.Cols(), func(out []backend.Cast) backend.Op {
		op.Out = out
		return op
	})
	return a.o.Forward(q, s.out, residual), s
}

func (a *Attention) rotate(p *Pass, name string, x *backend.Tensor) *backend.Tensor {
	y, cast := p.store(name, x.Rows(), x.Cols())
	op := a.rope(p, x, cast)
	if p.Cache != nil {
		op.Control = p.Control
	}
	p.Add(op)
	return y
}

// rope returns the rotation of x.
func (a *Attention) rope(p *Pass, x *backend.Tensor, out []backend.Cast) *backend.Rope {
	s := a.scaling
	return &backend.Rope{
		X: x, Out: out, Seq: p.Seq, HeadDim: a.headDim, Theta: a.theta,
		Factor: s.Factor, LowFreq: s.LowFreq, HighFreq: s.HighFreq, Original: s.Original,
	}
}

// Backward appends the gradients of all weights and returns dx, the gradient of
// the norm's output.
func (a *Attention) Backward(p *Pass, s *attentionSaved, dy *Value) *backend.Tensor {
	q := p.At(a.scope)
	a.o.Wgrad(q, s.out, dy, nil)
	dOut := q.temp("output.grad", s.q.Rows(), s.q.Cols())
	a.o.Dgrad(q, dy, dOut, false)

	dq, dqCast := q.store("q.grad", s.q.Rows(), s.q.Cols())
	dk, dkCast := q.store("k.grad", s.k.Rows(), s.k.Cols())
	gv := q.Open(a.dv, s.v.Rows(), s.v.Cols())
	q.Add(&backend.AttentionGrad{
		DOut: dOut, Q: s.q, K: s.k, V: s.v, O: p.Plain(s.out), LSE: s.lse, Start: p.Start,
		DQ: dqCast, DK: dkCast, DV: gv.Casts(), Batch: p.Batch, HeadDim: a.headDim,
	})
	q.Close(gv)
	gq := a.rotateBack(q, dq, a.qNorm, s.qNorm, a.dq)
	gk := a.rotateBack(q, dk, a.kNorm, s.kNorm, a.dk)

	dx := q.Temp("input.grad", fp8.F32, p.Tokens(), a.q.weight.Master.Cols())
	readers := []struct {
		*Linear
		dy *Value
	}{{a.q, gq}, {a.k, gk}, {a.v, gv}}
	for _, l := range readers {
		l.Wgrad(q, s.x, l.dy, nil)
	}
	for i, l := range readers {
		l.Dgrad(q, l.dy, dx, i > 0)
	}
	return q.scatterTokens(dx)
}

// rotateBack appends the gradient of a projection's result, given that of its rotated heads, in
// the copies of a slot. norm precedes the rotation, unless it is nil.
func (a *Attention) rotateBack(p *Pass, g *backend.Tensor, norm *RMSNorm, saved *normSaved, to *Slot) *Value {
	back := func(out []backend.Cast) backend.Op {
		op := a.rope(p, g, out)
		op.Inverse = true
		return op
	}
	if norm == nil {
		return p.Store(to, g.Rows(), g.Cols(), back)
	}
	q := p.At(norm.scope)
	dy, cast := q.store("out.grad", g.Rows(), g.Cols())
	p.Add(back(cast))
	dx := q.temp("input.grad", g.Rows(), g.Cols())
	norm.backward(q, saved, dy.Regroup(a.headDim), nil, []backend.Cast{{Out: dx.Regroup(a.headDim)}})
	return p.castStored(to, dx)
}
