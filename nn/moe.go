package nn

import (
	"fmt"
	"math"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// MoE is a mixture of experts in place of an MLP, as in Mixtral (arXiv 2401.04088): a router sends
// each token to the experts with the largest logits, and adds up their results with weights
// ([backend.Route]).
//
// Each expert is an [MLP] with weights, FP8 scales and smoothing scales of its own, which follow
// from its own tokens: an outlier channel of one expert does not touch the others. Programs are
// static, so an expert has a fixed number of rows, and drops tokens beyond it, whose residual
// passes alone. The rows that no token takes are 0: they change no amax and no gradient.
//
// The router's GEMMs are in the compute format under every recipe; its logits and all that
// follows are in FP32.
type MoE struct {
	scope   string
	shape   MoEShape
	dim     int
	gate    *Linear
	experts []*MLP
	row     int // of Base.RouteStats
	stats   *backend.Tensor

	input *Slot
	grad  *Slot   // of the router's logits
	down  []*Slot // the gradients of the experts' results
}

// MoEShape describes a mixture of experts.
type MoEShape struct {
	Experts  int // 0: an MLP
	PerToken int // experts of a token
	// Capacity is the capacity factor: an expert has rows for that many times its share of the
	// assignments. Evaluation and generation have rows for all tokens.
	Capacity float64
	Aux      float64 // coefficient of the auxiliary loss, see backend.RouteGrad
}

func (s MoEShape) validate() error {
	switch {
	case s.Experts == 0:
		return nil
	case s.Experts < 0 || s.Experts > MaxExperts:
		return fmt.Errorf("model.experts = %d: expected a number from 0 to %d", s.Experts, MaxExperts)
	case s.PerToken < 1 || s.PerToken > s.Experts:
		return fmt.Errorf("model.experts_per_token = %d: expected a number from 1 to model.experts = %d", s.PerToken, s.Experts)
	case !(s.Capacity > 0):
		return fmt.Errorf("model.expert_capacity = %v: expected a positive number", s.Capacity)
	case !(s.Aux >= 0):
		return fmt.Errorf("model.router_aux_loss = %v: expected 0 or more", s.Aux)
	}
	return nil
}

// MaxExperts bounds the experts of a layer.
const MaxExperts = 1 << 10

// Rows returns the rows of an expert for a batch of tokens: a multiple of 16, which FP8 GEMMs
// require, and at most the tokens.
func (s MoEShape) Rows(tokens int) int {
	rows := s.Capacity * float64(tokens) * float64(s.PerToken) / float64(s.Experts)
	if rows >= float64(tokens) {
		return tokens
	}
	return min(tokens, (int(math.Ceil(rows))+15)/16*16)
}

// mixtral names the weights of an expert in Mixtral's checkpoints.
var mixtral = map[string]string{"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}

// MoE declares the mixture of experts of the decoder layer at path layer. Its linear layers are
// layer.mlp.gate and layer.mlp.experts.N.up_proj, gate_proj and down_proj; their parameters have
// the names of Mixtral. The shape mlp is that of one expert.
func (b *Base) MoE(layer string, s MoEShape, mlp MLPShape) *MoE {
	m := &MoE{scope: layer + ".mlp", shape: s, dim: mlp.Dim, row: len(b.moes)}
	b.moes = append(b.moes, m)
	path := layer + ".block_sparse_moe"
	m.gate = b.linearNamed(path+".gate", recipe.Layer{Scope: m.scope + ".gate", Router: true}, NotSplit, mlp.Dim, s.Experts, mlp.InitStd)
	b.cacheWeights(m.gate)
	m.input = b.Slot(m.scope+".input", append(m.gate.Inputs(), b.Plain())...)
	m.grad = b.gradSlot(m.gate)
	for i := range s.Experts {
		scope := fmt.Sprintf("%s.experts.%d", m.scope, i)
		e := b.mlp(scope, scope, mlp, func(module string) string {
			return fmt.Sprintf("%s.experts.%d.%s", path, i, mixtral[module])
		})
		m.experts = append(m.experts, e)
		if e.smooth.Form.PerToken() {
			m.down = append(m.down, e.OutputGrad(b))
		} else {
			m.down = append(m.down, b.gradSlot(e.down))
		}
	}
	return m
}

// Input returns the slot that the layer reads.
func (m *MoE) Input() *Slot { return m.input }

// OutputGrad declares the slot of the gradient that Backward reads. Call it once.
func (m *MoE) OutputGrad(b *Base) *Slot { return b.Slot(m.scope+".output.grad", b.Plain()) }

// declareRouteStats declares the statistics of all mixtures of experts, which have equally many.
func (b *Base) declareRouteStats() {
	if len(b.moes) == 0 {
		return
	}
	n := backend.RouteStats + b.moes[0].shape.Experts
	b.RouteStats = b.Vars.Tensor(backend.Output, "moe.stats", fp8.F32, len(b.moes), n)
	for i, m := range b.moes {
		m.stats = b.RouteStats.Slice(m.scope+".stats", i*n, n)
	}
}

type moeSaved struct {
	x                            *Value
	rows                         int // of an expert
	logits                       *backend.Tensor
	weight, slot, source, counts *backend.Tensor // of backend.Route
	y                            []*backend.Tensor
	experts                      []*mlpSaved
}

// passes returns the pass of each expert, whose rows are slots in place of tokens.
func (s *moeSaved) passes(p *Pass) []*Pass {
	list := make([]*Pass, s.counts.Elems())
	for e := range list {
		q := *p
		q.Batch, q.Seq, q.used = 1, s.rows, s.counts.Slice(fmt.Sprintf("%s[%d]", s.counts.Name, e), e, 1)
		list[e] = &q
	}
	return list
}

// gather appends the rows of expert e: those of x, times the router's weights unless weight is nil.
func (s *moeSaved) gather(p *Pass, m *MoE, e int, x, weight *backend.Tensor, to *Slot) *Value {
	q := p.At(m.experts[e].scope)
	source := s.source.Slice(fmt.Sprintf("%s[%d]", s.source.Name, e), e*s.rows, s.rows)
	return q.Store(to, s.rows, m.dim, func(out []backend.Cast) backend.Op {
		return &backend.Gather{X: x, Source: source, Weight: weight, Out: out, K: m.shape.PerToken}
	})
}

// Forward appends residual + moe(x); residual may be nil.
func (m *MoE) Forward(p *Pass, x *Value, residual *backend.Tensor) (*backend.Tensor, *moeSaved) {
	q, tokens, n, k := p.At(m.scope), p.Tokens(), m.shape.Experts, m.shape.PerToken
	s := &moeSaved{x: x, rows: m.shape.Rows(tokens)}
	if p.Mode == Frozen {
		s.rows = tokens
	}
	s.logits, s.weight = q.Temp("logits", fp8.F32, tokens, n), q.Temp("weight", fp8.F32, tokens*k)
	s.slot, s.source, s.counts = q.Temp("slot", fp8.I32, tokens*k), q.Temp("source", fp8.I32, n*s.rows), q.Temp("counts", fp8.I32, n)
	p.named(m.gate.Scope).Add(&backend.MatMul{
		A: x.As(m.gate.fprop.a), B: m.gate.cachedAs(m.gate.fprop.b), TransB: true, Out: s.logits, Accum: backend.Fast,
	})
	q.Add(&backend.Route{
		Logits: s.logits, Weight: s.weight, Slot: s.slot, Source: s.source, Counts: s.counts, K: k, Capacity: s.rows,
	})
	s.experts, s.y = make([]*mlpSaved, n), make([]*backend.Tensor, n)
	passes, inputs := s.passes(p), make([]*Value, n)
	gather := func(e int) { inputs[e] = s.gather(p, m, e, p.Plain(x), nil, m.experts[e].input) }
	if p.Mode == Frozen { // an expert has rows for all tokens: expert by expert takes less memory
		for e, expert := range m.experts {
			gather(e)
			s.y[e], s.experts[e] = expert.Forward(passes[e], inputs[e], nil)
		}
	} else { // one part of all experts before the next, see MLP
		for e := range m.experts {
			gather(e)
		}
		for e, expert := range m.experts {
			s.experts[e] = expert.project(passes[e], inputs[e])
		}
		for e, expert := range m.experts {
			expert.activate(passes[e], s.experts[e])
		}
		for e, expert := range m.experts {
			s.y[e] = expert.projectDown(passes[e], s.experts[e], nil)
		}
	}
	out, cast := q.store("out", tokens, m.dim)
	q.Add(&backend.Combine{Y: s.y, Slot: s.slot, Weight: s.weight, Residual: residual, Out: cast, K: k})
	return out, s
}

// Backward appends the gradients of all weights and returns dx, the gradient of the norm's output.
func (m *MoE) Backward(p *Pass, s *moeSaved, dy *Value) *backend.Tensor {
	q, tokens, n, k := p.At(m.scope), p.Tokens(), m.shape.Experts, m.shape.PerToken
	dWeight := q.Temp("weight.grad", fp8.F32, tokens*k)
	q.Add(&backend.CombineGrad{DOut: p.Plain(dy), Y: s.y, Slot: s.slot, DWeight: dWeight, K: k})
	passes, dys, grads, dxs := s.passes(p), make([]*Value, n), make([]*mlpGrads, n), make([]*backend.Tensor, n)
	for e, expert := range m.experts {
		dy := s.gather(p, m, e, p.Plain(dy), s.weight, m.down[e])
		dys[e] = expert.scaledGrad(passes[e], s.experts[e], dy)
	}
	for e, expert := range m.experts {
		grads[e] = expert.gradHidden(passes[e], s.experts[e], dys[e])
	}
	for e, expert := range m.experts {
		expert.gradActivation(passes[e], s.experts[e], grads[e])
	}
	for e, expert := range m.experts {
		expert.gradUp(passes[e], s.experts[e], grads[e])
	}
	for e, expert := range m.experts {
		expert.gradGate(passes[e], s.experts[e], grads[e])
		dxs[e] = grads[e].x
	}
	dx := q.Temp("input.grad", fp8.F32, tokens, m.dim)
	q.Add(&backend.Combine{Y: dxs, Slot: s.slot, Out: []backend.Cast{{Out: dx}}, K: k})
	dLogits := q.Store(m.grad, tokens, n, func(out []backend.Cast) backend.Op {
		return &backend.RouteGrad{
			Logits: s.logits, Weight: s.weight, Slot: s.slot, Counts: s.counts, DWeight: dWeight,
			Control: p.Control, LossScale: p.LossScale, DLogits: out, Stats: m.stats,
			K: k, Capacity: s.rows, Aux: float32(m.shape.Aux),
		}
	})
	m.gate.Wgrad(q, s.x, dLogits, nil)
	m.gate.Dgrad(q, dLogits, dx, true)
	return dx
}
