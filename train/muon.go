package train

import (
	"fmt"
	"math"

	"octet/backend"
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
)

// Muon (Keller Jordan et al., kellerjordan.github.io/posts/muon) updates the weights of linear
// layers by their momentum, orthogonalized:
//
//	M = β·M + G          U = β·M + G                      Nesterov's, as published
//	X = U/‖U‖,           NSSteps times: X = aX + (bA + cA²)X with A = XXᵀ
//	p = p·(1 − lr·WeightDecay) − lr·0.2·√max(rows, cols)·X
//
// Without steps the last factor is lr·0.2·√(rows·cols), which gives X the same root mean square.
//
// Newton-Schulz steps move the singular values of X towards 1, to about [0.7, 1.2]. They
// are GEMMs of BF16, recorded as such. The last factor gives the update the root mean square of
// AdamW's, about 0.2 (arXiv 2502.16982), so that AdamW's learning rate is one for Muon, too.
//
// The GEMMs compute Y = X/aᵏ after k steps, which saves the multiplication by a:
//
//	S = b·a²ᵏ⁻¹·YYᵀ      B = S + (a·c/b²)·S²      Y = Y + B·Y
const (
	muonA, muonB, muonC = 3.4445, -4.7750, 2.0315
	muonRate            = 0.2
)

// usesMuon reports whether Muon updates p: the weight of a linear layer other than the head.
func (o *AdamW) usesMuon(p *nn.Param) bool { return o.config.Kind == "muon" && p.Quantized }

// recordMuon appends the update of these parameters.
func (o *AdamW) recordMuon(p *backend.Program, gate *backend.StepGate, control *backend.Tensor, params []*nn.Param) {
	r := newtonSchulz{p, o.config.NSSteps, map[string]*backend.Tensor{}}
	for _, param := range params {
		shape := []int{param.Shape[0], param.Cols()}
		rate := muonRate * math.Sqrt(float64(max(shape[0], shape[1])))
		if r.steps == 0 {
			rate *= math.Sqrt(float64(min(shape[0], shape[1])))
		}
		q, m := p.Scope(param.Name), o.m1[param]
		ahead := q.Temp("ahead", fp8.F32, shape...)
		q.Add(&backend.LinearUpdate{
			X: param.Grad, State: m, StateScale: m.Scale, Coef: gate.Coef, Control: control, Skip: gate.Skip, Next: ahead,
			Keep: float32(o.config.Momentum), Gain: 1,
			Rounding: o.model.Recipe.Optimizer.Rounding, Pow2: o.model.Recipe.Optimizer.Pow2,
		})
		y, scale := r.orthogonalize(q, ahead)
		q.Add(&backend.LinearUpdate{
			X: y, State: param.Master, StateScale: param.Master.Scale, Control: control, Skip: gate.Skip,
			Keep: 1, Decay: float32(o.config.WeightDecay), Rate: float32(rate * scale),
			Rounding: o.model.Recipe.Optimizer.Rounding, Pow2: o.model.Recipe.Optimizer.Pow2,
		})
	}
}

// newtonSchulz records Newton-Schulz steps.
type newtonSchulz struct {
	p     *backend.Program
	steps int
	rows  map[string]*backend.Tensor // of equal elements, by name
}

// orthogonalize appends the steps on u, F32 [rows, cols]. The result is y times scale; y is
// BF16 [rows, cols].
func (r *newtonSchulz) orthogonalize(q *backend.Program, u *backend.Tensor) (y *backend.Tensor, scale float64) {
	rows, cols := u.Rows(), u.Cols()
	unit := u.RowRange(0, rows)
	unit.Scale = q.Temp("inverse_norm", fp8.F32, 1)
	q.Add(&backend.SumSquares{X: []*backend.Tensor{u}, Out: unit.Scale, InverseNorm: true})
	y, scale = q.Temp("x", fp8.BF16, rows, cols), 1
	q.Add(&backend.Quantize{X: unit, Out: []backend.Cast{{Out: y}}})

	tall, n := rows > cols, min(rows, cols) // the square matrices have the smaller side
	for k := range r.steps {
		next := func(name string, shape ...int) *backend.Tensor {
			return q.Temp(fmt.Sprintf("%s%d", name, k+1), fp8.BF16, shape...)
		}
		s, b, x := next("s", n, n), next("b", n, n), next("x", rows, cols)
		q.Add(&backend.MatMul{A: y, B: y, TransA: tall, TransB: !tall, RowScale: r.row(muonB/muonA*scale*scale, n), Out: s})
		q.Add(&backend.MatMul{A: s, B: s, RowScale: r.row(muonA*muonC/(muonB*muonB), n), Residual: s, Out: b})
		last := &backend.MatMul{A: b, B: y, Residual: y, Out: x}
		if tall {
			last.A, last.B = y, b
		}
		q.Add(last)
		y, scale = x, scale*muonA
	}
	return y, scale
}

// row returns a vector of n equal elements, the factor of a GEMM: MatMul has no alpha.
func (r *newtonSchulz) row(value float64, n int) *backend.Tensor {
	name := fmt.Sprintf("%v.%d", float32(value), n)
	if r.rows[name] == nil {
		r.rows[name] = r.p.Temp(name, fp8.F32, n)
		r.p.Add(&backend.Fill{Out: r.rows[name], Value: float32(value)})
	}
	return r.rows[name]
}

// muon reports settings of Muon that are invalid, and those that it or AdamW lacks.
func (v *validator) muon(c Config) {
	p, o := c.Precision, c.Optimizer
	v.oneOf("optimizer.kind", o.Kind, []string{"adamw", "muon"})
	if !(o.Momentum >= 0 && o.Momentum < 1) {
		v.fail("optimizer.momentum = %v is out of range; use a number from 0 up to but not including 1, such as 0.95", o.Momentum)
	}
	inRange(v, "optimizer.ns_steps", o.NSSteps, 0, 20)
	m1, _ := fp8.ParseDType(p.M1)
	if o.Kind != "muon" {
		if d := Default().Optimizer; o.Momentum != d.Momentum || o.NSSteps != d.NSSteps {
			v.fail("optimizer.momentum = %v with optimizer.ns_steps = %d has no effect on optimizer.kind = %q; use %v and %d, or optimizer.kind = \"muon\"", o.Momentum, o.NSSteps, o.Kind, d.Momentum, d.NSSteps)
		}
		if m1.IsInteger() {
			v.fail("precision.m1 = %q is a format of Muon's momentum only; use optimizer.kind = \"muon\", or precision.m1 = \"e4m3\"", p.M1)
		}
		return
	}
	if c.tensor() > 1 {
		v.fail("optimizer.kind = \"muon\" needs whole matrices on every rank, and train.tensor_parallel = %d divides them; use train.tensor_parallel = 1", c.tensor())
	}
	if c.Train.Ranks > 1 && c.Train.ZeroStage > 0 {
		v.fail("optimizer.kind = \"muon\" needs whole matrices on every rank, and train.zero_stage = %d shards them; use train.zero_stage = 0", c.Train.ZeroStage)
	}
	if o.L2 > 0 {
		v.fail("optimizer.l2 = %v is AdamW's, and optimizer.kind = \"muon\" updates the weights of linear layers without it; use optimizer.l2 = 0", o.L2)
	}
	if p.StateExpand != nil && *p.StateExpand {
		v.fail("precision.state_expand = true is AdamW's, not Muon's; use precision.state_expand = false")
	}
	if d, _ := fp8.ParseDType(p.GradAccum); recipe.Scaled(d) {
		v.fail("precision.grad_accum = %q is a format that AdamW reads, not optimizer.kind = \"muon\"; use precision.grad_accum = \"bf16\"", p.GradAccum)
	}
	if o.DirectionLR {
		v.fail("optimizer.direction_lr = true lowers AdamW's learning rates, and optimizer.kind = \"muon\" updates the weights of linear layers without it; use optimizer.direction_lr = false")
	}
	if m1.IsInteger() && p.StateScope != "" && p.StateScope != recipe.LayersOnly.String() {
		v.fail("precision.m1 = %q with precision.state_scope = %q would give it to AdamW, too; use precision.state_scope = \"layers\"", p.M1, p.StateScope)
	}
}
