package train

import (
	"octet/backend"
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
)

// optimizer holds AdamW's state: two moments for each parameter, with the rows of
// its master. Moments of the layers' matrices have the recipe's formats, with one
// scale per tensor or per block of a row.
type optimizer struct {
	m1, m2 map[*nn.Param]*backend.Tensor
	scales []*backend.Tensor // of the quantized moments; initially 1
}

func newOptimizer(j *Job) optimizer {
	o := optimizer{m1: map[*nn.Param]*backend.Tensor{}, m2: map[*nn.Param]*backend.Tensor{}}
	for _, p := range j.Model.Params {
		r := recipe.Optimizer{M1: fp8.F32, M2: fp8.F32}
		if p.Quantized {
			r = j.Recipe.Optimizer
		}
		o.m1[p] = o.moment(j.Vars, p, "m1", r.M1, r.Block)
		o.m2[p] = o.moment(j.Vars, p, "m2", r.M2, r.Block)
		if p.Sharded() {
			for _, t := range []*backend.Tensor{p.Master, o.m1[p], o.m2[p]} {
				j.sharded[t] = true
				if t.Block != backend.PerTensor {
					j.sharded[t.Scale] = true
				}
			}
		}
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

// record appends the gradient norm, StepGate and one AdamW for each group of
// parameters with equal weight decay and formats.
func (o optimizer) record(j *Job, p *backend.Program) {
	var groups [3]struct {
		name   string
		params []*nn.Param
	}
	for i, name := range []string{"layers", "embedding", "norms"} {
		groups[i].name = name
	}
	for _, param := range j.Model.Params {
		g := 1
		switch {
		case param.Quantized:
			g = 0
		case !param.Matrix:
			g = 2
		}
		groups[g].params = append(groups[g].params, param)
	}
	c := j.Config.Optimizer
	gate := &backend.StepGate{
		SumSquares: j.sumSquares(p), Amax: j.Model.Scales.Amax, Step: j.Step,
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
			Amaxes: p.Temp("adamw."+g.name+".amax", fp8.F32, 3*len(g.params)),
			Beta1:  float32(c.Betas[0]), Beta2: float32(c.Betas[1]), Eps: float32(c.Eps),
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
			op.Grad = append(op.Grad, param.Reduced)
			op.Shard = param.Sharded()
			op.Master = append(op.Master, param.Master)
			op.M1, op.M2 = append(op.M1, m1), append(op.M2, m2)
			op.MasterScale = append(op.MasterScale, param.Master.Scale)
			op.M1Scale, op.M2Scale = append(op.M1Scale, m1.Scale), append(op.M2Scale, m2.Scale)
		}
		q := p.Scope("adamw." + g.name)
		if op.Shard && op.HasAmaxes() {
			first := *op
			first.AmaxOnly, op.AmaxGiven = true, true
			q.Add(&first)
			comm(q).Add(&backend.AllReduce{X: op.Amaxes, Reduce: backend.ReduceMax})
		}
		q.Add(op)
	}
}

// sumSquares appends the squared gradient norm: the squares of sharded gradients,
// all-reduced over the ranks, plus those of replicated gradients, counted once.
func (j *Job) sumSquares(p *backend.Program) *backend.Tensor {
	var sharded, replicated []*backend.Tensor
	for _, param := range j.Model.Params {
		if param.Sharded() {
			sharded = append(sharded, param.Reduced)
		} else {
			replicated = append(replicated, param.Reduced)
		}
	}
	squared := p.Temp("grad_norm.squared", fp8.F32, 1)
	if sharded == nil {
		p.Add(&backend.SumSquares{X: replicated, Out: squared})
		return squared
	}
	both := p.Temp("grad_norm.squares", fp8.F32, 2)
	ofSharded, ofReplicated := both.Slice("grad_norm.squares.shards", 0, 1), both.Slice("grad_norm.squares.whole", 1, 1)
	p.Add(&backend.SumSquares{X: sharded, Out: ofSharded})
	p.Add(&backend.SumSquares{X: replicated, Out: ofReplicated})
	comm(p).Add(&backend.AllReduce{X: ofSharded})
	p.Add(&backend.Sum{X: both, Out: squared})
	return squared
}
