package train

import (
	"math"

	"octet/backend"
	"octet/fp8"
	"octet/nn"
)

// UpdateResult describes a step's update of the parameters that AdamW updates, see
// [backend.UpdateStats]. A skipped step has a zero UpdateResult.
type UpdateResult struct {
	// RMS is the largest over the parameters of √mean(g²/v̂), and EmbeddingRMS that of the
	// embedding: about 1 in steady training, far above it if gradients grow faster than the
	// second moments (arXiv 2304.13013). A loss spike follows a step or more later.
	RMS, EmbeddingRMS float64
	Largest           float64 // largest update of an element, in units of the learning rate
	LargestIn         string  // the parameter with this element

	// ZeroV is the largest share over the parameters of elements whose stored second moment is 0 while
	// the first is not: v has underflowed, and the update divides m by this step's gradient alone.
	ZeroV   float64
	ZeroVIn string // the parameter with this share; empty if it is 0
}

// declareStats declares the outputs of UpdateStats.
func (o *AdamW) declareStats() {
	n := len(o.model.Params)
	o.MeanSquares = o.model.Vars.Tensor(backend.Output, "update.mean_squares", fp8.F32, n)
	o.Largest = o.model.Vars.Tensor(backend.Output, "update.largest", fp8.F32, n)
	o.ZeroV = o.model.Vars.Tensor(backend.Output, "update.zero_v", fp8.F32, n)
}

// recordStats appends the statistics of an update op, which has these parameters, and makes op
// clip by them. Padding rows of sharded parameters count: their gradients and moments are 0.
func (o *AdamW) recordStats(p *backend.Program, op *backend.AdamW, params []*nn.Param) {
	from := len(o.order)
	o.order = append(o.order, params...)
	part := func(t *backend.Tensor) *backend.Tensor { return t.Slice(t.Name+"."+params[0].Name, from, len(params)) }
	squares, largest, zeroV := part(o.MeanSquares), part(o.Largest), part(o.ZeroV)
	stats := &backend.UpdateStats{
		Grad: op.Grad, Master: op.Master, M1: op.M1, M2: op.M2, Step: op.Step, Coef: op.Coef, Skip: op.Skip,
		MeanSquares: squares, Largest: largest, ZeroV: zeroV,
		Beta1: op.Beta1, Beta2: op.Beta2, Eps: op.Eps, L2: op.L2, EpsForm: op.EpsForm, Parts: 1,
	}
	if op.Shard {
		stats.Parts = max(1, o.model.Shards) * max(1, o.model.Tensor)
		if !op.Split.All() {
			stats.Parts = op.Split.Size
		}
	}
	p.Add(stats)
	if op.Shard {
		sum := func(x *backend.Tensor) { comm(p).Add(&backend.AllReduce{X: x}) }
		if !op.Split.All() {
			sum = func(x *backend.Tensor) { o.sumOverParts(p, x) }
		}
		sum(squares)
		comm(p).Add(&backend.AllReduce{X: largest, Reduce: backend.ReduceMax, Group: op.Split})
		sum(zeroV)
	}
	if op.ClipRMS = float32(o.config.ClipRMS); op.ClipRMS > 0 {
		op.MeanSquares = squares
	}
}

// updateResult returns the result of the bytes of MeanSquares, Largest and ZeroV.
func (o *AdamW) updateResult(raw []byte) (r UpdateResult) {
	if o.MeanSquares == nil {
		return r
	}
	n := o.MeanSquares.Elems()
	for i, param := range o.order {
		rms := math.Sqrt(float(raw[4*i:]))
		r.RMS = max(r.RMS, rms)
		if param.Embedding {
			r.EmbeddingRMS = rms
		}
		if x := float(raw[4*(n+i):]); x > r.Largest || math.IsNaN(x) && !math.IsNaN(r.Largest) {
			r.Largest, r.LargestIn = x, param.Name
		}
		if x := float(raw[4*(2*n+i):]); x > r.ZeroV {
			r.ZeroV, r.ZeroVIn = x, param.Name
		}
	}
	return r
}
