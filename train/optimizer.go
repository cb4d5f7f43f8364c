package train

import (
	"cmp"
	"iter"
	"slices"

	"octet/backend"
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
)

// AdamW is AdamW with clipping of the gradient norm, for all parameters of a model, with
// its scales and the casts of its weights. To record it in a program of your own:
//
//	vars := backend.NewVars()
//	m := ...                                 // layers on an nn.Base of vars, then Build
//	m.DeclareGrads()
//	opt := train.NewAdamW(m.Base, train.Default().Optimizer)
//	update := m.Pass(vars.Program("update"), nn.Train, nn.Shape{Control: control})
//	opt.Update(update)
//
// In every step it runs micro-batches, which write the gradients, and then the update. The
// control words of the step hold the learning rate ([Optimizer.LRAt]).
//
// Each parameter has two moments with the shape of its master. Those of the
// matrices in [recipe.Optimizer.Scope] have the recipe's formats, with one scale per tensor or
// per block of a row; others are F32.
//
// If [Optimizer.Kind] is "muon", the weights of linear layers have Muon in place of AdamW. Their
// only moment is m1, the momentum.
type AdamW struct {
	GradNorm *backend.Tensor // Output F32 [1]: norm of all gradients before clipping
	Skip     *backend.Tensor // Output I32 [1]: 1 if the last update changed nothing, since the norm or an amax was not finite
	Step     *backend.Tensor // State I32 [1]: number of updates, skipped ones excluded

	LossScale *backend.Tensor // State F32 [1]: loss scale of the next step; nil without recipe.Recipe.LossScaling
	GoodSteps *backend.Tensor // State I32 [1]: updates since LossScale changed; nil likewise

	// Of each parameter's last update, as [backend.UpdateStats] defines them: Output F32 [n], nil
	// unless [Optimizer.Stats] or [Optimizer.ClipRMS] is set.
	MeanSquares, Largest, ZeroV *backend.Tensor

	config Optimizer
	ranks  int // with batches of their own
	model  *nn.Base
	order  []*nn.Param // of the elements of MeanSquares, Largest and ZeroV
	m1, m2 map[*nn.Param]*backend.Tensor
	scales []*backend.Tensor // of the quantized moments; initially 1
}

// NewAdamW declares the optimizer's state for the parameters of m, after [nn.Base.Build] and
// [nn.Base.DeclareGrads].
// Of c it reads Kind, Momentum, NSSteps, Betas, Eps, EpsForm, WeightDecay, L2, Clip, ClipRMS,
// DirectionLR, LossScale and Stats; a LossScale of 0 is [nn.InitialLossScale].
func NewAdamW(m *nn.Base, c Optimizer) *AdamW {
	o := &AdamW{
		GradNorm: m.Vars.Tensor(backend.Output, "grad_norm", fp8.F32, 1),
		Skip:     m.Vars.Tensor(backend.Output, "skip", fp8.I32, 1),
		Step:     m.Vars.Tensor(backend.State, "optimizer.step", fp8.I32, 1),
		config:   c, model: m, m1: map[*nn.Param]*backend.Tensor{}, m2: map[*nn.Param]*backend.Tensor{},
	}
	if o.LossScale = m.LossScale; o.LossScale != nil {
		o.GoodSteps = m.Vars.Tensor(backend.State, "loss_scale.good_steps", fp8.I32, 1)
	}
	if c.Stats || c.ClipRMS > 0 {
		o.declareStats()
	}
	for _, p := range m.Params {
		r := recipe.Optimizer{M1: fp8.F32, M2: fp8.F32}
		if o := m.Recipe.Optimizer; p.Matrix && o.Scope.Includes(p.Embedding, p.Head) {
			r = o
		}
		o.m1[p] = o.moment(p, "m1", r.M1, r)
		if !o.usesMuon(p) {
			o.m2[p] = o.moment(p, "m2", r.M2, r)
		}
	}
	return o
}

// moment declares a moment of p in format d, with the blocks of r.
func (o *AdamW) moment(p *nn.Param, name string, d fp8.DType, r recipe.Optimizer) *backend.Tensor {
	vars, shape := o.model.Vars, p.Master.Shape
	if r.Flat {
		shape = []int{p.Master.Elems()}
	}
	t := vars.Tensor(backend.State, p.Name+"."+name, d, shape...)
	if !recipe.Scaled(d) {
		return t
	}
	if r.Block == 0 {
		t.Scale = vars.Tensor(backend.State, t.Name+".scale_inv", fp8.F32, 1)
	} else {
		t.Block = backend.ScaleBlock{Rows: 1, Cols: r.Block}
		rows, blocks := t.Block.ScaleShape(t.Rows(), t.Cols())
		if t.Expand = r.Expand && d.IsQuantized(); t.Expand {
			t.Scale = vars.Tensor(backend.State, t.Name+".expansion", fp8.F32, rows, blocks, fp8.ExpansionElems)
		} else {
			t.Scale = vars.Tensor(backend.State, t.Name+".scale_inv", fp8.F32, rows, blocks)
		}
	}
	o.scales = append(o.scales, t.Scale)
	return t
}

// lossScaleGrowth is the number of updates without a skip after which the loss scale
// doubles, that of torch.amp.GradScaler.
const lossScaleGrowth = 2000

// Initial yields the tensors that are not zero before the first step, with their bytes:
// scales of 1, and masters with the values of [nn.Param.Init]. A tensor can come twice, the
// second time with its final bytes. It does not support sharded parameters.
func (o *AdamW) Initial(seed uint64) iter.Seq2[*backend.Tensor, []byte] {
	return func(yield func(*backend.Tensor, []byte) bool) {
		for t, value := range o.constants() {
			if !yield(t, fp8.AppendFloats(nil, slices.Repeat([]float32{value}, t.Elems())...)) {
				return
			}
		}
		for _, p := range o.model.Params {
			x := p.Init(seed)
			codes, scaleInv := encodeMaster(p.Master.DType, x, fp8.Amax(x), o.model.Recipe.Optimizer.Pow2)
			if !yield(p.Master, codes) || p.Master.Scale != nil && !yield(p.Master.Scale, fp8.AppendFloats(nil, scaleInv)) {
				return
			}
		}
	}
}

// constants yields the tensors of the model and of the optimizer whose initial value is not
// 0, with that value, masters aside.
func (o *AdamW) constants() iter.Seq2[*backend.Tensor, float32] {
	return func(yield func(*backend.Tensor, float32) bool) {
		for t, value := range o.model.Constants() {
			if t == o.LossScale {
				value = cmp.Or(float32(o.config.LossScale), value)
			}
			if !yield(t, value) {
				return
			}
		}
		for _, t := range o.scales {
			if !yield(t, 1) {
				return
			}
		}
	}
}

// Update appends the update of a step, after all of its micro-batches: the gradient norm,
// StepGate, AdamW, the new scales, and the casts of the new weights. A non-finite norm or
// amax skips all of it but the casts. The gradients must be declared
// ([nn.Base.DeclareGrads]). With several ranks, all-reduce the model's maxima before it.
func (o *AdamW) Update(p *nn.Pass) {
	o.ranks = p.Ranks
	o.record(p.Program, p.Control)
	o.model.UpdateScales(p.Program, o.Skip)
	o.model.StepMu(p, o.Skip)
	o.model.CastWeights(p)
}

// The groups of parameters with equal weight decay and formats.
const (
	quantized     = iota // weights of linear layers, in the recipe's formats
	otherMatrices        // in F32: the embedding and the head, or what a Network has
	vectors              // gains of norms, without weight decay
	splitVectors         // biases, of which ranks that share layers have parts; others are vectors
	groupCount
)

// groupPaths are public: dumps, profiles and comparisons contain adamw.layers and the like.
var groupPaths = [groupCount]string{quantized: "layers", otherMatrices: "embedding", vectors: "norms", splitVectors: "biases"}

// record appends the gradient norm, StepGate and one AdamW for each group.
func (o *AdamW) record(p *backend.Program, control *backend.Tensor) {
	o.order = nil
	var groups [groupCount][]*nn.Param
	for _, param := range o.model.Params {
		g := otherMatrices
		switch {
		case param.Quantized:
			g = quantized
		case !param.Matrix && param.Split != nn.NotSplit:
			g = splitVectors
		case !param.Matrix:
			g = vectors
		}
		groups[g] = append(groups[g], param)
	}
	c := o.config
	gate := &backend.StepGate{
		SumSquares: o.sumSquares(p), Amax: o.model.Scales.Amax, Step: o.Step,
		GradNorm: o.GradNorm, Coef: p.Temp("clip_coef", fp8.F32, 1), Skip: o.Skip,
		LossScale: o.LossScale, GoodSteps: o.GoodSteps, Clip: float32(c.Clip),
	}
	if o.LossScale != nil {
		gate.GrowthSteps = lossScaleGrowth
	}
	p.Add(gate)
	for g, params := range groups {
		if len(params) == 0 {
			continue
		}
		if o.usesMuon(params[0]) {
			o.recordMuon(p.Scope("muon"), gate, control, params)
			continue
		}
		op := &backend.AdamW{
			Control: control, Step: o.Step, Coef: gate.Coef, Skip: o.Skip,
			Amaxes: p.Temp("adamw."+groupPaths[g]+".amax", fp8.F32, 3*len(params)),
			Beta1:  float32(c.Betas[0]), Beta2: float32(c.Betas[1]), Eps: float32(c.Eps),
			Rounding: o.model.Recipe.Optimizer.Rounding,
			Pow2:     o.model.Recipe.Optimizer.Pow2,
		}
		if c.EpsForm == "corrected" {
			op.EpsForm = backend.EpsCorrected
		}
		if g == quantized || g == otherMatrices {
			op.WeightDecay, op.L2 = float32(c.WeightDecay), float32(c.L2)
		}
		for _, param := range params {
			m1, m2 := o.m1[param], o.m2[param]
			op.FloorV = o.model.Recipe.Optimizer.FloorV && m2.DType != fp8.F32 || op.FloorV
			grad := param.Reduced
			if len(m1.Shape) < len(grad.Shape) { // blocks of the flattened tensor
				grad = grad.Slice(grad.Name+".flat", 0, grad.Elems())
			}
			op.Grad = append(op.Grad, grad)
			op.Shard, op.Split = o.divides(param)
			op.Master = append(op.Master, param.Master)
			op.M1, op.M2 = append(op.M1, m1), append(op.M2, m2)
			op.MasterScale = append(op.MasterScale, param.Master.Scale)
			op.M1Scale, op.M2Scale = append(op.M1Scale, m1.Scale), append(op.M2Scale, m2.Scale)
		}
		q := p.Scope("adamw." + groupPaths[g])
		if o.MeanSquares != nil {
			o.recordStats(q, op, params)
		}
		if c.DirectionLR && g == quantized {
			o.recordDirection(q, op, params)
		}
		if op.Shard && op.HasAmaxes() {
			first := *op
			first.AmaxOnly, op.AmaxGiven = true, true
			q.Add(&first)
			comm(q).Add(&backend.AllReduce{X: op.Amaxes, Reduce: backend.ReduceMax, Group: op.Split})
		}
		q.Add(op)
	}
}

// divides reports whether ranks hold parts of a parameter's state, and which ranks: all, or those of a
// group, where others hold copies.
func (o *AdamW) divides(p *nn.Param) (bool, backend.Group) {
	switch {
	case p.Sharded():
		return true, backend.Group{}
	case p.Split != nn.NotSplit:
		return true, backend.Group{Size: o.model.Tensor, Stride: 1}
	}
	return false, backend.Group{}
}

// sumOverParts appends the sum of x over the ranks that share layers. Groups have copies of these parts, and a
// network may add them in another order: all take the largest of the sums, so that copies stay equal.
func (o *AdamW) sumOverParts(p *backend.Program, x *backend.Tensor) {
	comm(p).Add(&backend.AllReduce{X: x, Group: backend.Group{Size: o.model.Tensor, Stride: 1}})
	if o.ranks > 1 {
		comm(p).Add(&backend.AllReduce{X: x, Reduce: backend.ReduceMax, Group: backend.Group{Size: o.ranks, Stride: o.model.Tensor}})
	}
}

// sumSquares appends the squared gradient norm: the squares of gradients of which ranks have parts,
// all-reduced over these ranks, plus those of replicated gradients, counted once.
func (o *AdamW) sumSquares(p *backend.Program) *backend.Tensor {
	var shards, parts, whole []*backend.Tensor // of all ranks, of those that share layers, of each
	for _, param := range o.model.Params {
		switch divided, g := o.divides(param); {
		case !divided:
			whole = append(whole, param.Reduced)
		case g.All():
			shards = append(shards, param.Reduced)
		default:
			parts = append(parts, param.Reduced)
		}
	}
	squared := p.Temp("grad_norm.squared", fp8.F32, 1)
	if shards == nil && parts == nil {
		p.Add(&backend.SumSquares{X: whole, Out: squared})
		return squared
	}
	n := 2
	if shards != nil && parts != nil {
		n = 3
	}
	squares := p.Temp("grad_norm.squares", fp8.F32, n)
	at := 0
	add := func(name string, x []*backend.Tensor) *backend.Tensor {
		if x == nil {
			return nil
		}
		sum := squares.Slice("grad_norm.squares."+name, at, 1)
		at++
		p.Add(&backend.SumSquares{X: x, Out: sum})
		return sum
	}
	ofShards, ofParts := add("shards", shards), add("parts", parts)
	add("whole", whole)
	if ofShards != nil {
		comm(p).Add(&backend.AllReduce{X: ofShards})
	}
	if ofParts != nil {
		o.sumOverParts(p, ofParts)
	}
	p.Add(&backend.Sum{X: squares, Out: squared})
	return squared
}
