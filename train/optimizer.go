package train

import (
	"octet/backend"
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
)

// optimizer is AdamW's state: two moments for each parameter, those of the
// layers' matrices in the recipe's formats, with one scale each or one for every
// block of a row.
type optimizer struct {
	m1, m2 map[*nn.Param]*backend.Tensor
	scales []*backend.Tensor // of the quantised moments; they start at 1
}

func newOptimizer(j *Job) optimizer {
	o := optimizer{m1: map[*nn.Param]*backend.Tensor{}, m2: map[*nn.Param]*backend.Tensor{}}
	for _, p := range j.Model.Params {
		r := recipe.Optimizer{M1: fp8.F32, M2: fp8.F32}
		if p.Quantized() {
			r = j.Recipe.Optimizer
		}
		o.m1[p] = o.moment(j.Vars, p, "m1", r.M1, r.Block)
		o.m2[p] = o.moment(j.Vars, p, "m2", r.M2, r.Block)
	}
	return o
}

func (o *optimizer) moment(vars *backend.Vars, p *nn.Param, name string, d fp8.DType, block int) *backend.Tensor {
	t := vars.Tensor(backend.State, p.Name+"."+name, d, p.Master.Shape...)
	if !recipe.Scaled(d) {
		return t
	}
	shape := []int{1}
	if block > 0 {
		t.Block = backend.ScaleBlock{Rows: 1, Cols: block}
		rows, blocks := t.Block.ScaleShape(t.Rows(), t.Cols())
		shape = []int{rows, blocks}
	}
	t.Scale = vars.Tensor(backend.State, t.Name+".scale_inv", fp8.F32, shape...)
	o.scales = append(o.scales, t.Scale)
	return t
}

// record appends the norm, the gate and one AdamW for each group of equal
// weight decay and formats.
func (o optimizer) record(j *Job, p *backend.Program) {
	norm := &backend.SumSquares{Out: p.Temp("grad_norm.squared", fp8.F32, 1)}
	var groups [3]struct {
		name   string
		params []*nn.Param
	}
	for i, name := range []string{"layers", "embedding", "norms"} {
		groups[i].name = name
	}
	for _, param := range j.Model.Params {
		norm.X = append(norm.X, param.Grad)
		g := 1
		switch {
		case param.Quantized():
			g = 0
		case !param.Matrix:
			g = 2
		}
		groups[g].params = append(groups[g].params, param)
	}
	p.Add(norm)
	c := j.Config.Optimizer
	gate := &backend.StepGate{
		SumSquares: norm.Out, Amax: j.Model.Scales.Amax, Step: j.Step,
		GradNorm: j.GradNorm, Coef: p.Temp("clip_coef", fp8.F32, 1), Skip: j.Skip,
		Clip: float32(c.Clip),
	}
	p.Add(gate)
	for i, g := range groups {
		if len(g.params) == 0 {
			continue
		}
		op := &backend.AdamW{
			Control: j.Control, Step: j.Step, Coef: gate.Coef, Skip: j.Skip,
			Scratch: p.Temp("adamw."+g.name+".amax", fp8.F32, 3*len(g.params)),
			Beta1:   float32(c.Betas[0]), Beta2: float32(c.Betas[1]), Eps: float32(c.Eps),
			Rounding: j.Recipe.Optimizer.Rounding,
			Pow2:     j.Recipe.Optimizer.Pow2, FloorV: i == 0 && j.Recipe.Optimizer.FloorV,
		}
		if c.EpsForm == "corrected" {
			op.EpsForm = backend.EpsCorrected
		}
		if i < 2 {
			op.WeightDecay = float32(c.WeightDecay)
		}
		for _, param := range g.params {
			m1, m2 := o.m1[param], o.m2[param]
			op.Grad = append(op.Grad, param.Grad)
			op.Master = append(op.Master, param.Master)
			op.M1, op.M2 = append(op.M1, m1), append(op.M2, m2)
			op.MasterScale = append(op.MasterScale, param.Master.Scale)
			op.M1Scale, op.M2Scale = append(op.M1Scale, m1.Scale), append(op.M2Scale, m2.Scale)
		}
		p.Scope("adamw." + g.name).Add(op)
	}
}
