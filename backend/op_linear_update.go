package backend

import "octet/fp8"

// LinearUpdate replaces a stored tensor, such as a momentum or a master weight, by a linear
// combination:
//
//	State = a·State + b·X      a = Keep − lr·Decay, b = Coef·(Gain − lr·Rate)
//	Next  = a·State + b·X      of the new State before rounding: Nesterov's look-ahead
//
// Coef is 1 if nil, lr is the learning rate of Control. With Keep = β and Gain = 1 it is the
// momentum M = β·M + Coef·G; with Keep = 1, Decay and Rate it is the update of a weight by a
// direction X, with weight decay.
//
// State has a format and scales as the moments of AdamW, or an integer format such as INT8. Its blocks count along its own
// rows: a State of one row has blocks of the flattened tensor. The scale is limit/amax of the
// new values, rounded down to a power of two if Pow2; an amax of 0 keeps it. Stochastic rounding
// draws its bits as AdamW's. INT8 has no NaN: only Skip keeps out values that are not finite.
// If Skip is set, State and its scales do not change and Next is 0.
type LinearUpdate struct {
	X          *Tensor `op:"in"`             // F32 or BF16
	State      *Tensor `op:"inout"`          // F32 or BF16, or F16, FP8 or INT8 with scales
	StateScale *Tensor `op:"inout,optional"` // F32: scale_inv of State; nil for F32 and BF16
	Coef       *Tensor `op:"in,optional"`    // F32 [1]
	Control    *Tensor `op:"in"`
	Skip       *Tensor `op:"in"`           // I32 [1]
	Next       *Tensor `op:"out,optional"` // F32

	Keep, Decay, Gain, Rate float32
	Rounding                fp8.Rounding
	Pow2                    bool
}

func (o *LinearUpdate) check() error {
	var c checker
	c.dtype("X", o.X, fp8.F32, fp8.BF16)
	c.unscaled("X", o.X)
	c.that(o.X.Contiguous(), "X is %s, a view with gaps: copy it to a contiguous tensor", o.X)
	c.that(o.State.DType.HoldsMomentum(), "State is %s, expected a floating-point format that has NaN, or an integer format such as int8", o.State)
	c.stored("State", o.State, "X", o.X)
	c.that(o.State.Scale == o.StateScale, "State is %s: its scale must be listed as StateScale", o.State)
	if o.StateScale != nil {
		c.vector("StateScale", o.StateScale, o.State.ScaleElems())
	}
	if o.Coef != nil {
		c.scalar("Coef", o.Coef)
	}
	c.control(o.Control)
	c.ints("Skip", o.Skip, 1)
	if o.Next != nil {
		c.vector("Next", o.Next, o.X.Elems())
	}
	c.that(o.Rounding <= fp8.Stochastic, "unknown rounding %d", uint8(o.Rounding))
	return c.err
}
