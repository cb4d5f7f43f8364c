package train

import (
	"math"

	"octet/backend"
	"octet/fp8"
	"octet/nn"
)

// directionRate computes what makes AdamW, with ClipRMS 1, multiply the learning rate of tensor i by
// φ = max(e^(−20·d), 0.1), with d the distance X[i] (Unified INT8, arXiv 1912.12607): Out[i] = 1/φ². The
// floor is reached at d = 0.115.
type directionRate struct {
	backend.Custom
	X   []*backend.Tensor `op:"in"`  // F32 [1] each
	Out *backend.Tensor   `op:"out"` // F32 [len(X)]
}

// Check implements backend.CustomOp.
func (o *directionRate) Check(c *backend.Check) {
	for _, x := range o.X {
		c.Vector("X", x, 1)
	}
	c.Vector("Out", o.Out, len(o.X))
}

// Reference implements backend.CustomOp.
func (o *directionRate) Reference(a backend.Arguments) {
	out := make([]float64, len(o.X))
	for i, x := range o.X {
		out[i] = math.Pow(max(math.Exp(-20*a.Read(x)[0]), 0.1), -2)
	}
	a.Store(o.Out, out)
}

// Loop implements backend.Looped.
func (o *directionRate) Loop() backend.Loop {
	return backend.Loop{In: o.X, Out: [][]backend.Cast{{{Out: o.Out}}}, WholeRows: true, F: func(out, in [][]float32) {
		for i, x := range in {
			factor := max(math.Exp(-20*float64(x[0])), 0.1)
			out[0][i] = float32(1 / float64(factor*factor))
		}
	}}
}

// recordDirection makes the update op, of these parameters, take learning rates by the distances of
// their gradients' casts in the last micro-batch, the largest of all ranks. A tensor without such a
// cast keeps its rate.
func (o *AdamW) recordDirection(p *backend.Program, op *backend.AdamW, params []*nn.Param) {
	distances := o.model.Distances()
	rate := &directionRate{Out: p.Temp("direction_lr", fp8.F32, len(params))}
	none := p.Temp("direction_lr.none", fp8.F32, 1)
	p.Add(&backend.Fill{Out: none})
	for _, param := range params {
		x := distances[param]
		if x == nil {
			x = none
		}
		rate.X = append(rate.X, x)
	}
	p.Add(rate)
	op.MeanSquares, op.ClipRMS = rate.Out, 1
}
